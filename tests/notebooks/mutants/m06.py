"""Mistakes in lesson 06 under which its verdicts must fail."""

MUTANTS = {
    "the solution forgets its cast": [
        ("return q_turned.to(q.dtype), k_turned.to(k.dtype)", "return q_turned, k_turned")
    ],
    "the solution casts cos and sin": [
        (
            "q_turned, k_turned = rotary(q, k, cos, sin, unsqueeze_dim)\n",
            "q_turned, k_turned = rotary(q, k, cos.to(q.dtype), sin.to(q.dtype), unsqueeze_dim)\n",
        )
    ],
    "no autocast": [("torch.autocast(device.type, autocast)", "torch.autocast(device.type, autocast, enabled=False)")],
    "the weights are bfloat16": [('"weights": torch.float32, "rows"', '"weights": torch.bfloat16, "rows"')],
    "cos and sin stay narrow": [
        (
            '"bfloat16 weights, float32 cos and sin": {"weights": torch.bfloat16, "tables": torch.float32}',
            '"bfloat16 weights, float32 cos and sin": {"weights": torch.bfloat16}',
        )
    ],
    "cos and sin are cast to float32": [
        ("return rotary(q, k, cos.to(q.dtype), sin.to(q.dtype), unsqueeze_dim)", "return cast_back(q, k, cos, sin)")
    ],
    "both cards rotate alike": [('arms = {"bug": rotary, mine.whose: mine}', 'arms = {"bug": mine, mine.whose: mine}')],
    "8 rows are read as 1": [("mine.whose, 8, planned", "mine.whose, 1, planned")],
    "Llama for Qwen3": [('{"rotation": mine, "model": "Qwen3"}', '{"rotation": mine, "model": "Llama"}')],
}
