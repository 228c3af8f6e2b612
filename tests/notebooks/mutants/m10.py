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
    "all rewards come": [('"deal": props.one_task_each, "few": True}', '"deal": props.one_task_each}')],
    "micro-batches have the fix in both columns": [("        if own_tokens:\n", "        if False:\n")],
    "bug and fix are exchanged in the slow judge's exams": [
        (
            'props.differences(runs["bug, slow judge"], runs["fix, slow judge"], "max")',
            'props.differences(runs["fix, slow judge"], runs["bug, slow judge"], "max")',
        )
    ],
    "sorted is compared with the slow judge": [
        (
            'props.differences(runs["bug"], runs["fix"], task)',
            'props.differences(runs["bug"], runs["fix, slow judge"], task)',
        )
    ],
}
