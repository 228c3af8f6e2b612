"""Deliberate mistakes in lesson 10: see tests/notebooks/claims.py."""

MUTANTS = {
    "the bug divides by the tokens of all": [
        (
            "def local_mean(per_token, mask):\n    return (per_token * mask).sum() / mask.sum()",
            "def local_mean(per_token, mask):\n    tokens = mask.sum()\n    world = 1\n"
            "    if torch.distributed.is_initialized():\n"
            "        torch.distributed.all_reduce(tokens)\n        world = 2\n"
            "    return (per_token * mask).sum() / tokens * world",
        )
    ],
    "the fix has its own tokens": [
        ("    torch.distributed.all_reduce(tokens)  # new: now the tokens of all processes\n", "")
    ],
    "the fix forgets the number of processes": [
        ("return (per_token * mask).sum() / tokens * world", "return (per_token * mask).sum() / tokens")
    ],
    "no process averages its gradients": [
        ("wrapped = wrap(model)  # DDP in a pair, the model itself alone", "wrapped = model")
    ],
    "twins are sorted": [('"twins": {"deal": props.twins}', '"twins": {"deal": props.sorted_by_length}')],
    "micro-batches have the fix in both columns": [("        if own_tokens:\n", "        if False:\n")],
    "bug and fix are exchanged in the slow judge's exams": [
        ('props.differences(slow["bug"], slow["fix"], "max")', 'props.differences(slow["fix"], slow["bug"], "max")')
    ],
    "the slow judge stands in the place of sorted": [
        ('props.differences(runs["bug"], runs["fix"], task)', 'props.differences(slow["bug"], slow["fix"], task)')
    ],
    "the averaged loss keeps its graph": [
        (
            "mean.data = both / 2  # another value; `backward` goes through the graph as it was\n    return mean",
            "return mean * (both / 2 / mean.detach())",
        )
    ],
    "all rewards are known to both": [('"deal": props.every_other, "own_groups": True', '"deal": props.every_other')],
}
