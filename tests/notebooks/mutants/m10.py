"""Deliberate mistakes in lesson 10, each of which must break a verdict: see tests/notebooks/claims.py."""

OF_ITS_OWN = "    return (per_token * mask).sum() / mask.sum()  # mask: 1 = a token that counts"

MUTANTS = {
    "the bug draws by rank": [
        (
            "generator = torch.Generator().manual_seed(seed)  # draws",
            "generator = torch.Generator().manual_seed(seed + rank)  #",
        )
    ],
    "mended is not mended": [("trained(mine, loss, SEEDS)", "trained(deal, loss, SEEDS)")],
    "the mended loss weighs nothing": [("trained(mine, loss, SEEDS)", "trained(mine, lambda *a: loss(*a) * 0, SEEDS)")],
    "no process averages its gradients": [
        ("model = DistributedDataParallel(policy.model)\n        per_token", "model = policy.model\n        per_token")
    ],
    "the bug divides by the tokens of all": [
        (OF_ITS_OWN, "    return (per_token * mask).sum() * world / total(mask.sum())")
    ],
    "as many tokens each is sorted": [
        ('"as many tokens each": cases.as_many_tokens', '"as many tokens each": cases.sorted_by_length')
    ],
    "the solution forgets the number of processes": [
        ("(per_token * mask).sum() * world / total(mask.sum())", "(per_token * mask).sum() / total(mask.sum())")
    ],
    "accelerate's loss forgets the number of processes": [
        ("(per_token * mask).sum() * accelerator.num_processes / tokens", "(per_token * mask).sum() / tokens")
    ],
    "local means are dealt as drawn, the micro-batches sorted": [
        ('"local means": BY_LENGTH | {', '"local means": BY_LENGTH | {"deal": cases.as_drawn, ')
    ],
    "copies are the mended pair": [
        ("chart.add(COPIES, bugs, both_in_one)", "chart.add(COPIES, list(mended.values()), both_in_one)")
    ],
    "own draws have rows of their own": [('OWN_DRAWS: {"deal": own_draws}', 'OWN_DRAWS: {"deal": deal_by_rank}')],
    "as drawn has copies": [
        ('AS_DRAWN: {"deal": deal_by_rank, "own_tokens": "as drawn"}', 'AS_DRAWN: {"deal": deal, "world": 1}')
    ],
    "sorted has copies": [
        ('SORTED: {"deal": deal_by_rank, "own_tokens": "sorted by length"}', 'SORTED: {"deal": deal, "world": 1}')
    ],
    "local means and tokens of all exchanged": [
        ('late["bug"], late["fix"], family', 'late["fix"], late["bug"], family')
    ],
    "the marks are turned round in the other row": [("{LATE: False, TURNED: True}", "{LATE: True, TURNED: False}")],
}
