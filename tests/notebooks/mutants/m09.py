"""Mistakes in lesson 09 under which its verdicts must fail. Several in one mutant are far apart in the lesson."""

MUTANTS = {
    "an old token for the new one": [('"12+34=<think>46"', '"12+34=46"')],
    "the gathered one among the three; weights of zero; another neighbour": [
        ('for name in ("new token", "label as id", "long row")', 'for name in ("new token", "label gathered")'),
        ('fill_(float("nan"))', "fill_(0.0)"),
        ('f"12+34={last}46"', '"12+34=746"'),
    ],
    "a row that fits; left is right": [
        ('"12+34=46" * 5', '"12+34=46" * 4'),
        ("it.tokenizer.padding_side = side", 'it.tokenizer.padding_side = "right"'),
    ],
    "ids where labels belong; the open mask is causal; id 15": [
        (
            'return {"input_ids": labels_of(ids_of(tokenizer, "12+34=46"))}',
            'return {"input_ids": ids_of(tokenizer, "12+34=46")}',
        ),
        (".expand(-1, 1, mask.shape[1], -1).bool()", ".expand(-1, 1, mask.shape[1], -1).bool().tril()"),
        ("torch.tensor([[16]])", "torch.tensor([[15]])"),
    ],
    "labels are ids too; positions are not counted; another model's log-probs": [
        (
            'return {"input_ids": ids, "labels": labels_of(ids)}',
            'return {"input_ids": labels_of(ids), "labels": labels_of(ids)}',
        ),
        ("(m.cumsum(-1) - 1).clamp(min=0)", "torch.arange(m.shape[1])[None]"),
        ("it.model(torch.arange(2, 16)[None])", "qwen2(torch.arange(2, 16)[None])"),
    ],
    "an id beyond the padded table; new positions for real; the plain rows are the prepared": [
        (
            "unused = token_ids(it.tokenizer, it.model, [[4, 5, 20]])",
            "unused = token_ids(it.tokenizer, it.model, [[4, 5, 24]])",
        ),
        (
            "it.model.config.n_positions = 64",
            "it.model.transformer.wpe = torch.nn.Embedding(64, 128, device=it.device)",
        ),
        ('{"plain": rows(loader())', '{"plain": rows(engine.prepare(loader()))'),
    ],
    "the long row is none; the reference too; the prepared rows are plain": [
        ('"long row": {"cause": long_row,', '"long row": {"cause": new_token,'),
        ("lambda it: resized(copy.deepcopy(it))", "resized"),
        ('"prepared": rows(engine.prepare(loader()))}', '"prepared": rows(loader())}'),
    ],
    "every model by the config; 13 rows dealt out; the plain gradient is the prepared": [
        (
            '"every model": {"cause": new_token, "mend": resized}',
            '"every model": {"cause": new_token, "mend": more_positions}',
        ),
        ("rows(engine.prepare(loader(13)))", "rows(loader(13))[found.rank :: 2]"),
        ('facts["wrapped"] = gradient(loader())', 'facts["wrapped"] = gradient(engine.prepare(loader()))'),
    ],
    "not resized; the prepared gradient is the plain; one GPU": [
        ("resized(it)\nafter", "after"),
        (
            'facts["prepared gradient"], _ = gradient(engine.prepare(loader()))',
            'facts["prepared gradient"], _ = gradient(loader())',
        ),
        ("return_value=4", "return_value=1"),
    ],
    "the tables are made anew; one more token; before for after": [
        (
            "resized(it)\nafter",
            'resized(it)\nit.model.lm_head.weight.data.mul_(0.5)\nit.tokenizer.add_tokens(["x"])\nafter',
        ),
        ("taken = float(after.softmax(-1)[..., 16].max())", "taken = float(before.softmax(-1)[..., 16:].sum())"),
    ],
    "torchrun starts one process": [('"--nproc_per_node", "2"', '"--nproc_per_node", "1"')],
    "the first launch without cpu": [
        ('start(*TORCHRUN, script, "cpu", "policy")', 'start(*TORCHRUN, script, "policy")')
    ],
    "torchrun for accelerate": [
        ('start(*ACCELERATE, "--cpu", "--num_processes", "2", script, "cpu")', 'start(*TORCHRUN, script, "cpu")')
    ],
    "accelerate is asked for nothing; one GPU for labkit; a sound split": [
        ('"--cpu", "--num_processes", "2", script', '"--cpu", script'),
        ("launch.launched({}, gpus=4)", "launch.launched({}, gpus=1)"),
        ('"every world-th": lambda rows, rank, world: rows[rank::world]', '"every world-th": split'),
    ],
    "the third launch with cpu; the solution does not fill up": [
        ("start(*TORCHRUN, script)", 'start(*TORCHRUN, script, "cpu")'),
        ("filled = (list(rows) * world)[: each * world]", "filled = list(rows)"),
    ],
    "the script says cpu where it is not": [
        ('found = launch.launched(cpu="cpu" in sys.argv)', "found = launch.launched(cpu=True)")
    ],
}
