"""Mistakes in lesson 17 under which its verdicts must fail."""

MUTANTS = {
    "accelerate's processes are torchrun's": [
        ("_, accelerate, torchrun = started", "_, torchrun, accelerate = started"),
        ("first, second = props.processes(torchrun)", "first = second = props.processes(torchrun)[0]"),
    ],
    "accelerate is not told how many": [
        (
            "started = props.launches(SCRIPT)",
            "for command in props.LAUNCHERS.values():\n"
            "    command[:] = command[:-2] if '--num_processes' in command else command\n"
            "started = props.launches(SCRIPT)",
        )
    ],
    "the script shuffles by its rank": [("random.Random(0).shuffle(rows)", "random.Random(rank).shuffle(rows)")],
    "the script deals by its rank": [("starts with rows {rows[:4]}", "starts with rows {rows[rank::world][:4]}")],
    "the bug's dice differ": [(".manual_seed(seed)\n", ".manual_seed(seed + rank)\n")],
    "nothing is averaged": [
        ("torch.distributed.all_reduce(whole)  # the sum over the processes", "pass"),
    ],
    "the one process has another seed": [
        ("props.run(train, deal, [SEED], world=1)[SEED]", "props.run(train, deal, [SEED + 5], world=1)[SEED + 5]")
    ],
    "the fix is the bug": [("fix = props.run(train, deal_by_rank, SEEDS)", "fix = bug")],
    "bug and fix exchanged": [("gain = props.mean(props.gains(fix, bug))", "gain = props.mean(props.gains(bug, fix))")],
    "the fix's gradient is the bug's": [('"fix": deal_by_rank,', '"fix": deal,')],
    "rows and dice exchanged": [
        ('"own dice alone": own_dice_alone,', '"own dice alone": own_rows_alone,'),
        ('"own rows alone": own_rows_alone,', '"own rows alone": own_dice_alone,'),
    ],
    "equal seeds differ": [("seeds=[SEED, SEED], model", "seeds=[SEED, SEED + 1], model")],
    "the rank is not added": [("seeds=[SEED, SEED + 1], model", "seeds=[SEED, SEED], model")],
}  # fmt: skip
