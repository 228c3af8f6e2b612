"""Mistakes in lesson 05 under which its verdicts must fail."""

MUTANTS = {
    "the bug keeps only numbers": [
        ("kept.append(model(input_ids=ids, labels=ids))", "kept.append(model(input_ids=ids, labels=ids).loss.detach())")
    ],
    "the bug forgets the results before": [
        ("kept.append(model(input_ids=ids, labels=ids))", "kept[:] = [model(input_ids=ids, labels=ids)]")
    ],
    # not here: the fix without no_grad. The lesson's arm "only loss.item() kept" is that, and it leaves nothing
    "the fix keeps the whole output": [
        (
            "kept.append(model(input_ids=ids, labels=ids).loss.item())  # was",
            "kept.append(model(input_ids=ids, labels=ids))  # was",
        )
    ],
    "the fix's arm runs the bug": [
        ('{"seed": seed, "evaluate": evaluate_fixed} for seed', '{"seed": seed, "evaluate": evaluate} for seed')
    ],
    "the third seed's bug is the fix": [
        ('{"seed": SEEDS[2], "evaluate": evaluate}', '{"seed": SEEDS[2], "evaluate": evaluate_fixed}')
    ],
    "the stack of somebody else": [
        ('line.startswith("evaluate")', 'line.startswith("update")')
    ],
    "the loss is kept without its graph": [
        ("labels=ids).loss)\n\n\ndef", "labels=ids).loss.detach())\n\n\ndef")
    ],
    "the number is kept as a tensor": [
        ('"only loss.item() kept": number_alone', '"only loss.item() kept": loss_alone')
    ],
    "the cache is emptied after the fix": [
        (
            "    evaluate(model, batches, kept)\n    props.empty_cache()",
            "    evaluate_fixed(model, batches, kept)\n    props.empty_cache()",
        )
    ],
    "the longer batch comes first": [('{"lengths": {3: 1200}}', '{"lengths": {1: 1400}}')],
    "twenty rows are eight": [('{"rows": 20}', '{"rows": 8, "lengths": {6: 1000}}')],
    "the history is not given": [
        ("memory.owner(run.outcome.message, props.held(run))", "memory.owner(run.outcome.message)")
    ],
    "others die of the leak": [
        ('common = {"evaluate": evaluate_fixed,', 'common = {"evaluate": evaluate,')
    ],
    "the rule is the commonest cause": [
        ("out_of_memory.score(last)[0], ", "out_of_memory.best_constant(last), ")
    ],
}  # fmt: skip
