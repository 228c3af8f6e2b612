"""Mistakes in lesson 17 under which its verdicts must fail."""

MUTANTS = {
    "accelerate's processes are torchrun's": [
        ("_, by_accelerate, by_torchrun = (", "_, by_torchrun, by_accelerate = ("),
        ("first, second = by_torchrun", "first = second = by_torchrun[0]"),
    ],
    "the script shuffles by its rank": [("random.Random(0).shuffle(rows)", "random.Random(rank).shuffle(rows)")],
    "the script deals by its rank": [("starts with rows {rows[:4]}", "starts with rows {rows[rank::world][:4]}")],
    "the bug's dice differ": [(".manual_seed(seed)", ".manual_seed(seed + rank)")],
    "nothing is averaged": [
        ("torch.distributed.all_reduce(weight.grad)  # the sum over the processes", "pass"),
    ],
    "the one process has another seed": [
        ("props.run(train, deal, [SEED], world=1)[SEED]", "props.run(train, deal, [SEED + 5], world=1)[SEED + 5]")
    ],
    "the fix is the bug": [("fix = props.run(train, deal_by_rank, SEEDS)", "fix = bug")],
    "bug and fix exchanged": [
        ('mean of three seeds", props.mean_gain(fix, bug)', 'mean of three seeds", props.mean_gain(bug, fix)')
    ],
    "equal seeds differ": [("seeds=[SEED, SEED], model", "seeds=[SEED, SEED + 1], model")],
    "the rank is not added": [("seeds=[SEED, SEED + 1], model", "seeds=[SEED, SEED], model")],
    "the two shares exchanged": [("equal_share, by_rank_share =", "by_rank_share, equal_share =")],
}  # fmt: skip
