"""Mistakes in lesson 15 under which its verdicts must fail."""

MUTANTS = {
    "the evaluation keeps its outputs": [
        (
            "        for ids in batches:\n            model(input_ids=ids, labels=ids)",
            "        evaluate.kept = getattr(evaluate, 'kept', [])\n        for ids in batches:\n"
            "            evaluate.kept.append(model(input_ids=ids, labels=ids))",
        )
    ],
    "each evaluation leaves 64 MiB": [
        (
            "        for ids in batches:\n            model(input_ids=ids, labels=ids)\n    model.train()",
            "        for ids in batches:\n            model(input_ids=ids, labels=ids)\n    model.train()\n"
            "    evaluate.left = [*getattr(evaluate, 'left', []), torch.empty(2**24)]",
        )
    ],
    "blocks that leave small holes": [("CALLS, EMPTY = program()", "CALLS, EMPTY = program(stays=900 * MIB)")],
    "the first program has blocks that stay": [
        ("_, no = trace(program(stays=0), gpu)", "_, no = trace(program(), gpu)")
    ],
    "a request that fits": [('("malloc", "step", 2 * GIB, "activation")]', '("malloc", "step", GIB, "activation")]')],
    "the roomy card is small": [("trace(RUN, Allocator(8 * GIB))", "trace(RUN, Allocator(5 * GIB))")],
    "the cache before the first step": [('phase.startswith("after step")]', 'phase.startswith("build")]')],
    "a card with room": [("CARD_GIB = 5.0", "CARD_GIB = 8.0")],
    "a card too small for one step": [("CARD_GIB = 5.0", "CARD_GIB = 3.5")],
    "a larger training batch": [("ids = tokens(8, 512)", "ids = tokens(9, 512)")],
    "the map begins in the backward pass": [
        ('if phase != before and phase.startswith("step"):', 'if phase != before and phase.startswith("backward"):')
    ],
    "the map of a roomy card": [
        ("gpu = Allocator(int(CARD_GIB * GIB))\nmade, began", "gpu = Allocator(8 * GIB)\nmade, began")
    ],
    "the segments that the steps made": [
        ('made.items() if phase.startswith("evaluation")', 'made.items() if phase.startswith(("step", "build"))')
    ],
    "the holes left out": [('used["free"] + no.free', "no.free")],
    "emptied too late": [("CALLS[:14] + EMPTY + CALLS[14:]", "CALLS[:21] + EMPTY + CALLS[21:]")],
    "every moment with expandable segments": [
        ("gpu = Allocator(8 * GIB)\n    _, no", 'gpu = Allocator(8 * GIB, "expandable_segments:True")\n    _, no')
    ],
    "the evaluations stay in": [("without(RUN, EVALS)}", "without(RUN, set())}")],
    "each alone is none": [("without(RUN, EVALS - {one})", "without(RUN, EVALS)")],
    "before and after exchanged": [
        ('with_empty(RUN, "evaluation")', 'with_empty(RUN, "after evaluation ")'),
        ('with_empty(RUN, "backward")', 'with_empty(RUN, "after evaluation")'),
        ('with_empty(RUN, "after evaluation")\nCARDS', 'with_empty(RUN, "evaluation")\nCARDS'),
    ],
    "expandable segments not in force": [("ended(RUN, size, ON)", "ended(RUN, size)")],
    "the fix is the bug": [("record(evaluate_in_scope)", "record(evaluate)")],
    "tried again on a fresh card": [
        ("gpu.empty_cache()\n_, second", "gpu = Allocator(int(CARD_GIB * GIB))\n_, second")
    ],
    "another request the second time": [("first.requested", "2 * first.requested")],
    "fragments without what stays": [('"fragments": (program()[:-1], 0)', '"fragments": (program(stays=0)[:-1], 0)')],
    "the freed cache with what stays": [
        ('"freed cache": (program(stays=0)[:-1], 0)', '"freed cache": (program()[:-1], 0)')
    ],
    "fewer references": [('"references": (program()[:7], 0)', '"references": (program()[:6], 0)')],
    "we hold it ourselves": [
        ("neighbour.malloc(GIB) for _ in range(5)", "neighbour.malloc(GIB) for _ in range(1)"),
        ("trace(program()[:2], ours)", "trace(program()[:7], ours)"),
    ],
    "ours and the neighbour's exchanged": [
        ("ours.empty_cache()\nmine", "neighbour.empty_cache()\nmine"),
        ("neighbour.empty_cache()\ntheirs", "neighbour.malloc(5 * GIB)\ntheirs"),
    ],
    "PyTorch asks first": [("trace(program(stays=0)[:-1], gpu)\ncache", "trace(program(stays=0), gpu)\ncache")],
    "nobody empties for NCCL": [("tries = gpu.num_alloc_retries\ngpu.empty_cache()", "tries = gpu.num_alloc_retries")],
    "a right moment among the wrong ones": [("lambda calls: len(calls) - 1,", "solution,")],
    "the solution is one call early": [("return max(frees) + 1", "return max(frees)")],
}
