"""Record what PyTorch's CUDA allocator did, as a small file that `labkit.memory.allocator.replay` can check.

    with record_history("run.jsonl.gz") as history:
        for batch in batches:
            step(batch)
            history.step()          # the allocator's statistics, for the replay to find again
    print(history.path, history.events)

The file is `torch-memory-history/1`: a header, then one JSON object an event, as in torch's `device_traces`. Stacks are
not recorded: they are what makes torch's own snapshots large.
"""

from __future__ import annotations

import datetime
import gzip
import io
import json
from pathlib import Path
from typing import Any

from labkit.common import write_whole

LARGEST = 300_000  # bytes of the file
_CALLERS = {"alloc", "free_requested", "free_completed", "oom", "snapshot"}
_SEGMENTS = {"segment_alloc", "segment_free", "segment_map", "segment_unmap"}


def record_history(path: str | Path, device: Any = "cuda", *, note: str = "") -> History:
    """Record the allocator of one CUDA device while the block runs, and write `path` (.jsonl or .jsonl.gz).

    Start in a process that has nothing allocated on the device yet: a history is replayed from an empty allocator.
    ValueError otherwise, and where there is no CUDA device.
    """
    return History(path, device, note)


class History:
    """See `record_history`. `steps` are the statistics taken, `events` the number written."""

    def __init__(self, path: str | Path, device: Any, note: str):
        self.path, self.note = Path(path), note
        self._device = device
        self.steps: list[dict[str, int]] = []
        self.events = 0
        self.left_out = 0  # events at the end that would have made the file larger than 300 kB

    def __enter__(self) -> History:
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                f"record_history: torch {torch.__version__} sees no CUDA device here; on the CPU, "
                "labkit.memory.Tap records what the same code would do"
            )
        chosen = torch.device(self._device)
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

    def step(self) -> dict[str, int]:
        """Note the allocator's statistics now; the replay must meet them again, in this order."""
        import torch

        stats = torch.cuda.memory_stats(self.index)
        self.steps.append(
            {
                "allocated_bytes": stats["allocated_bytes.all.current"],
                "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
                "reserved_bytes": stats["reserved_bytes.all.current"],
                "inactive_split_bytes": stats["inactive_split_bytes.all.current"],
            }
        )
        return self.steps[-1]

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
            "cuda": torch.version.cuda,
            "settings": str(snapshot["allocator_settings"].get("PYTORCH_CUDA_ALLOC_CONF", "")),
            "total_memory": properties.total_memory,
            "note": self.note
            or "'alloc' size is the requested size; an empty_cache() leaves no event of its own",
        }
        self.save(header, snapshot["device_traces"][self.index])

    def save(self, header: dict[str, Any], trace: list[dict[str, Any]]) -> None:
        """Write the longest beginning of the trace that fits. Step statistics go with the events before them."""
        lines = [_line(event) for event in trace if event["action"] in _CALLERS | _SEGMENTS]
        kept = len(lines)
        while True:
            cut = kept < len(lines)
            head = header | {"step_stats": [] if cut else self.steps}
            if cut:
                head["cut"] = f"the first {kept} of {len(lines)} events"
            data = _packed(self.path, [json.dumps(head), *lines[:kept]])
            if len(data) <= LARGEST or kept == 0:
                break
            kept = min(kept - 1, int(kept * LARGEST / len(data) * 0.98))
        self.events, self.left_out = kept, len(lines) - kept
        write_whole(self.path, data)


def _line(event: dict[str, Any]) -> str:
    """Only what a replay needs. An `oom` event has the device's free bytes where others have an address."""
    keys = ("action", "addr", "size") if event["action"] not in ("oom", "snapshot") else ("action", "size")
    row = {key: event[key] for key in keys}
    if event.get("stream"):
        row["stream"] = event["stream"]
    return json.dumps(row, separators=(",", ":"))


def _packed(path: Path, lines: list[str]) -> bytes:
    text = "".join(line + "\n" for line in lines).encode()
    if path.suffix != ".gz":
        return text
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:  # mtime: the same run gives the same file
        file.write(text)
    return buffer.getvalue()
