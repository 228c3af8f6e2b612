"""Mistakes in lesson 11 under which its verdicts must fail."""

MUTANTS = {
    "the logits are forgotten to be float32": [
        ("logits = rows * tokens * vocabulary * float32", "logits = rows * tokens * vocabulary * 2")
    ],
    "the GELU is taken for one tensor": [('1 + tanh": 4 * 4}', '1 + tanh": 4}')],
    "attention's tensors are counted as the GELU's": [('if "3072" in s)', 'if "(32, 12, 256" in s)')],
    "predicted with a fourth of the rows": [
        ('budgets = {name: predict("124M", **settings)', 'budgets = {name: predict("124M", **{**settings, "batch": 1})')
    ],
    "every run is measured without its knob": [('measure("124M", **settings)', 'measure("124M", **START)')],
    "the leak keeps nothing": [("kept += [logits.detach()] * keep", "kept += [0] * keep")],
    "steps of one length": [("[256, 320, 384, 448, 512]", "[512] * 5")],
    "empty_cache was never called": [("steps(LONGER, empty=True)", "steps(LONGER)")],
    "one chunk of everything": [("mask, new, chunk=4)", "mask, new, chunk=64)")],
    "micro-batches are not averaged": [("(value / parts).backward()", "value.backward()")],
    "the prompt's logits are left out both times": [
        ('{"logprobs": chunked, "new": 63}', '{"logprobs": chunked, "new": 32}')
    ],
    "the queries are not grouped": [('"num_key_value_heads": 2', '"num_key_value_heads": 14')],
    "the recipe keeps tokens and rank": [
        ('return {**given, **smaller, "lora": 8}', 'return {**given, "micro_batches": 2}')
    ],
    "the claims are copied wrong": [('"batch 2": 0.40, "accumulate', '"batch 2": 0.04, "accumulate')],
    "96 tokens are measured at half the prompt": [
        ('"96 new tokens": {"new_tokens": 96}', '"96 new tokens": {"new_tokens": 96, "prompt": 64}')
    ],
}
