"""What triage needs of the known logs and texts at run time, as one compact file: labkit/triage/known.json.gz.

    python scripts/triage/pack.py            write it
    python scripts/triage/pack.py --check    exit code 1 when it is not what cases.jsonl and vocabulary.jsonl give

Of a known log its thread, its cause and its words are needed, of a library's text the text and its class. The same
input gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from labkit.common import write_whole  # noqa: E402
from labkit.triage.known import words_of  # noqa: E402

PACKED = ROOT / "labkit" / "triage" / "known.json.gz"


def packed() -> bytes:
    """The file as it should be."""
    cases = [json.loads(line) for line in (HERE / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = [json.loads(line) for line in (HERE / "vocabulary.jsonl").read_text(encoding="utf-8").splitlines()]
    logs = [(case["source"], case["label"], sorted(words_of(map(str, case["log"])))) for case in cases]
    words = sorted({word for _, _, some in logs for word in some})
    number = {word: at for at, word in enumerate(words)}
    content = {
        "words": words,
        "logs": [(source, cause, [number[word] for word in some]) for source, cause, some in logs],
        "texts": [(text["in"], text["class"], text["kind"], text["text"]) for text in texts],
    }
    plain = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    return gzip.compress(plain, mtime=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    if parser.parse_args().check:
        same = gzip.decompress(PACKED.read_bytes()) == gzip.decompress(packed())
        print("known.json.gz is up to date" if same else "known.json.gz is old: python scripts/triage/pack.py")
        return int(not same)
    write_whole(PACKED, packed())
    return 0


if __name__ == "__main__":
    sys.exit(main())
