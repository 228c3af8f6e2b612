"""Mistakes in lesson 11 under which its verdicts must fail."""

MUTANTS = {
    "the card is large enough for all but the last tensor": [("total_memory=8 * GIB", "total_memory=int(8.65 * GIB)")],
    "the logits are forgotten to be float32": [
        ("logits = rows * tokens * vocabulary * float32", "logits = rows * tokens * vocabulary * 2")
    ],
    "the cache holds keys only": [("cache = 2 * layers * rows", "cache = layers * rows")],
    "the GELU is taken for one tensor": [('1 + tanh": 4 * 4}', '1 + tanh": 4}')],
    "the layer is measured without its adapter": [("one_layer(GPT2, lora=16), rows", "one_layer(SMALL), rows")],
    "predicted with another rank and half the rows": [
        ('budgets = {name: predict("124M", **settings)', 'budgets = {name: predict("124M", **{**settings, "batch": 1})')
    ],
    "what was measured, measured without the knob": [('measure("124M", **settings)', 'measure("124M", **START)')],
    "the leak keeps nothing": [("kept += [logits.detach()] * keep", "kept += [0] * keep")],
    "the healthy run keeps its logits": [('"healthy": steps(SAME)', '"healthy": steps(SAME, keep=True)')],
    "steps of one length": [("[256, 320, 384, 448, 512]", "[512] * 5")],
    "empty_cache was never called": [("steps(LONGER, empty=True)", "steps(LONGER)")],
    "checkpointing without a knob": [
        ('"checkpointing": {"checkpointing": True},\n    "bfl', '"checkpointing": {},\n    "bfl')
    ],
    "one chunk of everything": [("mask, new, chunk=4)", "mask, new, chunk=64)")],
    "the chunks are shifted by one": [
        ("hidden = out.last_hidden_state[:, -new - 1 : -1]", "hidden = out.last_hidden_state[:, -new:]")
    ],
    "micro-batches are not averaged": [("(value / parts).backward()", "value.backward()")],
    "the prompt's logits are left out both times": [
        ('{"logprobs": chunked, "new": 63}', '{"logprobs": chunked, "new": 32}')
    ],
    "checkpointing twice plain": [('"checkpointing": {"checkpointing": True}}', '"checkpointing": {}}')],
    "Qwen's keys for 14 heads": [("2 * 24 * rows * tokens * (2 * 64) * 2", "2 * 24 * rows * tokens * (14 * 64) * 2")],
    "the queries are not grouped": [('"num_key_value_heads": 2', '"num_key_value_heads": 14')],
    "the exercise's solution does not change the type": [
        ('"micro_batches": 12, "checkpointing": True, "amp": True}', '"micro_batches": 12, "checkpointing": True}')
    ],
    "the recipe keeps tokens and rank": [
        ('return {**given, **smaller, "lora": 8}', 'return {**given, "micro_batches": 2}')
    ],
    "splitting also shrinks the cache": [
        ('"micro_batches": 96}', '"micro_batches": 96, "amp": True, "checkpointing": True}')
    ],
    "the claims are copied wrong": [('"batch 2": 0.40, "accumulate', '"batch 2": 0.04, "accumulate')],
    "accumulation is measured from the start": [(', of="batch 2")', ', of="start")')],
    "fine-tuning is compared with the start": [(', of="SFT 1024")', ', of="start")')],
    "96 tokens are measured at half the prompt": [
        ('"96 new tokens": {"new_tokens": 96}', '"96 new tokens": {"new_tokens": 96, "prompt": 64}')
    ],
    "LoRA r 8 is no LoRA": [('"LoRA r 8": {"lora": 8}', '"LoRA r 8": {"lora": 0}')],
    "no LoRA is LoRA": [('"no LoRA": {"lora": 0}', '"no LoRA": {"lora": 16}')],
    "the rows are twice as many in four parts": [
        ('{"batch": 8, "micro_batches": 2}', '{"batch": 8, "micro_batches": 1}')
    ],
}
