"""Mistakes in lesson 05 under which its verdicts must fail."""

MUTANTS = {
    "the bug keeps only numbers": [
        ("kept.append(model(input_ids=ids, labels=ids))", "kept.append(model(input_ids=ids, labels=ids).loss.detach())")
    ],
    "the bug forgets the results before": [
        ("kept.append(model(input_ids=ids, labels=ids))", "kept[:] = [model(input_ids=ids, labels=ids)]")
    ],
    "the solution keeps the whole output": [
        (
            "kept.append(model(input_ids=ids, labels=ids).loss.item())  # was",
            "kept.append(model(input_ids=ids, labels=ids))  # was",
        )
    ],
    "the solution builds a graph": [("evaluating(model), torch.no_grad():  # new", "evaluating(model):  # new")],
    "the mended arm runs the bug": [
        ('(mended.whose, seed): {"evaluate": mended', '(mended.whose, seed): {"evaluate": evaluate')
    ],
    "the other seeds' bug is mended": [
        ('("bug", seed): {"evaluate": evaluate', '("bug", seed): {"evaluate": mended')
    ],
    "the stack of somebody else": [('line.startswith("evaluate")', 'line.startswith("update")')],
    "the loss is kept without its graph": [
        ("labels=ids).loss)\n\n\nKINDS", "labels=ids).loss.detach())\n\n\nKINDS")
    ],
    "the walk stops at the first node": [("todo += [parent for parent, _ in node.next_functions]", "pass")],
    "the cache is emptied after the solution": [
        (
            "    evaluate(model, batches, kept)\n    gc.collect()",
            "    evaluate_fixed(model, batches, kept)\n    gc.collect()",
        )
    ],
    "the update grows with the run": [
        (
            "    logits = model(input_ids=ids).logits[:, :-1]  # [8, 447, 50257]",
            "    optimizer.calls = getattr(optimizer, 'calls', 0) + 1\n"
            "    logits = model(input_ids=ids[:, : 400 + 6 * optimizer.calls]).logits\n"
            "    ids = torch.zeros(8, logits.shape[1] + 1, dtype=torch.long, device=ids.device)",
        )
    ],
}  # fmt: skip
