"""Record what PyTorch's CUDA allocator did, as a small file that `labkit.memory.allocator.replay` can check.

    with record_history("run.jsonl.gz") as history:
        for batch in batches:
            step(batch)
            history.step()          # the allocator's statistics, for the replay to find again
    print(history.path, history.events)

The file is `torch-memory-history/1`: a header, then one JSON object per event, as in torch's `device_traces`. Stacks
are not recorded: they are what makes torch's own snapshots large.
"""

from __future__ import annotations

import datetime
import gzip
import json
from pathlib import Path
from typing import Any

from labkit.common import write_whole

LARGEST = 300_000  # bytes of the file

_RECORDED = {"alloc", "free_requested", "free_completed", "oom"}
_RECORDED |= {"segment_alloc", "segment_free", "segment_map", "segment_unmap"}
_STATISTICS = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")


class record_history:  # noqa: N801 (used as a function is, like torch.no_grad)
    """Record the allocator of one CUDA device while the block runs, and write `path` (.jsonl or .jsonl.gz).

    Afterwards `events` is the number written, `left_out` of those at the end that would have made the file larger than
    300 kB; `steps` are the statistics taken.
    Raises: ValueError where something is allocated already (a replay starts from nothing), or there is no CUDA device.
    """

    def __init__(self, path: str | Path, device: Any = "cuda"):
        self.path, self.device = Path(path), device
        self.steps: list[dict[str, int]] = []
        self.events = self.left_out = 0

    def __enter__(self) -> record_history:
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                f"record_history: torch {torch.__version__} sees no CUDA device here; on the CPU, "
                "labkit.memory.Tap records what the same code would do"
            )
        chosen = torch.device(self.device)
        self.index = torch.cuda.current_device() if chosen.index is None else chosen.index
        torch.cuda.empty_cache()
        if held := torch.cuda.memory_reserved(self.index):
            raise ValueError(
                f"record_history: {held} bytes are reserved on cuda:{self.index} already; a replay starts from "
                "nothing, so start recording in a fresh process, before the first tensor on the device"
            )
        torch.cuda.reset_peak_memory_stats(self.index)
        torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=1_000_000)
        return self

    def step(self) -> None:
        """Note the allocator's statistics now; the replay must meet them again, in this order."""
        import torch

        stats = torch.cuda.memory_stats(self.index)
        now = {name: stats[f"{name}.all.current"] for name in _STATISTICS}
        self.steps.append(now | {"peak_allocated_bytes": stats["allocated_bytes.all.peak"]})

    def __exit__(self, *exc: Any) -> None:
        import torch

        try:
            snapshot = torch.cuda.memory._snapshot()
        finally:
            torch.cuda.memory._record_memory_history(None)
        properties = torch.cuda.get_device_properties(self.index)
        header = {
            "format": "torch-memory-history/1",
            "torch": torch.__version__,
            "source": f"torch.cuda.memory._snapshot()['device_traces'][{self.index}] of a run on {properties.name}",
            "date": datetime.date.today().isoformat(),
            "settings": str(snapshot["allocator_settings"].get("PYTORCH_CUDA_ALLOC_CONF", "")),
            "total_memory": properties.total_memory,
        }
        lines = [_line(event) for event in snapshot["device_traces"][self.index] if event["action"] in _RECORDED]
        self._save(header, lines)

    def _save(self, header: dict[str, Any], lines: list[str]) -> None:
        """Write as many of the first lines as fit. Step statistics go with the events before them."""
        kept = len(lines)
        cut: dict[str, Any] = {"step_stats": self.steps}
        while True:
            text = "\n".join([json.dumps(header | cut), *lines[:kept], ""]).encode()
            data = gzip.compress(text, mtime=0) if self.path.suffix == ".gz" else text
            if len(data) <= LARGEST or kept == 0:
                break
            kept = min(kept - 1, int(kept * LARGEST / len(data) * 0.98))
            cut = {"step_stats": [], "cut": f"the first {kept} of {len(lines)} events"}
        self.events, self.left_out = kept, len(lines) - kept
        write_whole(self.path, data)


def _line(event: dict[str, Any]) -> str:
    """Only what a replay needs. An `oom` event has the device's free bytes where others have an address."""
    keys = ["action", "size"] if event["action"] == "oom" else ["action", "addr", "size"]
    keys += ["stream"] if event.get("stream") else []
    return json.dumps({key: event[key] for key in keys}, separators=(",", ":"))
