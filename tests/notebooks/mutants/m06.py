"""Mistakes in lesson 06 under which its verdicts must fail."""

MUTANTS = {
    "the fix forgets its cast": [("return q_turned.to(q.dtype), k_turned.to(k.dtype)", "return q_turned, k_turned")],
    "the fix casts the query alone": [("k_turned.to(k.dtype)", "k_turned")],
    "the fix casts the tables, and rounds once more": [
        (
            "q_turned, k_turned = rotary(q, k, cos, sin, unsqueeze_dim)\n",
            "q_turned, k_turned = rotary(q, k, cos.to(q.dtype), sin.to(q.dtype), unsqueeze_dim)\n",
        )
    ],
    "the weights are bfloat16": [
        ('policy = props.small("Llama", SEED, device)', 'policy = props.small("Llama", SEED, device).bfloat16()')
    ],
    "no autocast": [
        ("torch.autocast(device.type, torch.bfloat16)", "torch.autocast(device.type, torch.bfloat16, enabled=False)")
    ],
    "both arms rotate alike": [('"fix": {"rotation": cast_back}', '"fix": {"rotation": rotary}')],
    "the run's peak is the lower one": [('max(seen["peak"][part]', 'min(seen["peak"][part]')],
    "the step is left out": [('parts = ("sampling, 64 rows", step)', 'parts = ("sampling, 64 rows",)')],
    "the rise is read backwards": [
        ('steps["fix"][-1].reward - steps["fix"][0].reward', 'steps["fix"][0].reward - steps["fix"][-1].reward')
    ],
    "another seed's updates": [
        ('zip(steps["bug"], steps["fix"], strict=True)', 'zip(steps["bug"], runs["fix"][SEEDS[0]].steps, strict=True)')
    ],
    "the bug's row for Qwen3's": [('ways["Qwen3: a norm on q and k"]', 'ways["the lesson\'s bug"]')],
    "far out is near": [('errors["tokens 8,016 and 8,020"]', 'errors["tokens 16 and 20"]')],
    "far apart in place of far out": [('errors["tokens 8,016 and 8,020"]', 'errors["tokens 4,020 and 8,020"]')],
    "angles and frequencies exchanged": [('far_out["angles rounded"], ">"', 'far_out["frequencies rounded"], ">"')],
}
