"""torchrun on one machine, with its stores and gloo on the loopback alone. By itself torch lets the stores
listen on every address.

python -m labkit.launch --nproc_per_node 2 script.py
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any


def main(arguments: list[str]) -> None:
    import torch.distributed as dist
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as c10d
    from torch.distributed.run import main as torchrun

    class Loopback(dist.TCPStore):
        def __init__(self, host_name: str, port: int, is_master: bool = False, **settings: Any):
            if is_master:
                listener = socket.create_server(("127.0.0.1", port))
                port = listener.getsockname()[1]
                settings["master_listen_fd"] = listener.detach()
            super().__init__("127.0.0.1", port, is_master=is_master, **settings)

    name = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    dist.TCPStore = c10d.TCPStore = Loopback  # type: ignore[assignment, misc]
    torchrun(arguments)


if __name__ == "__main__":
    main(["--standalone", *sys.argv[1:]])
