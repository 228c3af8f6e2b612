"""Mistakes in lesson 06 under which its verdicts must fail."""

MUTANTS = {
    "the bug casts its result": [
        ("rotate: object = promoted", "rotate: object = lambda x, p: promoted(x, p).to(x.dtype)")
    ],
    "v is cast along from the start": [("lambda v, q: v  #", "lambda v, q: v.to(q.dtype)  #")],
    "activations are float32 everywhere": [("dtype: torch.dtype = HALF", "dtype: torch.dtype = torch.float32")],
    "the control is in bf16, too": [
        (
            "control = attempt(lambda: policy(ids, Parts(dtype=torch.float32)))",
            "control = attempt(lambda: policy(ids, Parts()))",
        )
    ],
    "no autocast": [
        ("with torch.autocast(device.type, HALF):", "with torch.autocast(device.type, HALF, enabled=False):")
    ],
    "nothing is trained": [(".flatten()).backward()", ".flatten()).mul(0).backward()")],
    "the fix forgets the cast": [("promoted(x, positions).to(x.dtype)", "promoted(x, positions)")],
    "casts along, but back to bf16": [("    return v.to(q.dtype)", "    return v")],
    "the linear layers do not follow": [("self.weight.to(x.dtype))", "self.weight.to(HALF)).to(HALF)")],
    "a float32 embedding": [("self.embed(ids).to(parts.dtype)", "self.embed(ids)")],
    "the promoted rollout is measured with the cast": [
        ("full, high = rollout(Parts(value=cast_along))", "full, high = rollout(Parts(rotate=cast))")
    ],
    "the cache keeps keys only": [("tap.label([cache.kv for cache", "tap.label([cache.kv[0] for cache")],
    "a card larger than both": [("card = (low + high) // 2", "card = 2 * high")],
    "a card smaller than both": [("card = (low + high) // 2", "card = low // 2")],
    "the norm is cast back": [("x.shape[-1:]) * weight", "x.shape[-1:]).to(x.dtype)")],
    "the mask has the scores' dtype": [("device=q.device).triu(1)", "device=q.device, dtype=q.dtype).triu(1)")],
    "the cache has the keys' dtype": [
        ("kept = torch.zeros(2, *k.shape, device=k.device)", "kept = torch.stack((k, v))")
    ],
    "tables and angles exchanged": [
        ('"tables": cast_tables, "angles": cast_angles}', '"tables": cast_angles, "angles": cast_tables}')
    ],
    "angles are cast far too late": [(".shape[-1]).to(x.dtype)\n", ".shape[-1])\n")],
    "the result loses eight bits more": [
        ('CASTS = {"result": cast,', 'CASTS = {"result": lambda x, p: (cast(x, p) * 1.004).to(x.dtype),')
    ],
    "rounded angles from the start": [
        ("def cast_angles(x, positions):\n", "def cast_angles(x, positions):\n    positions = positions + 50\n")
    ],
    "one run learns nothing": [
        (
            "optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)",
            "optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3 * (rotate is cast_tables))",
        )
    ],
    "always the same start": [("guesses(model, fresh, parts, start)[1]", "guesses(model, fresh, parts, 0)[1]")],
    "the other policy's parts": [('models["angles"], Parts(cast_angles)', 'models["angles"], Parts(cast_tables)')],
    "attention to the token itself": [("back = PERIOD - 1", "back = 0")],
    "both looks at the start": [("Parts(rotate, attend=watching), start)", "Parts(rotate, attend=watching), 0)")],
    "Llama is not cast": [("llama.bfloat16()\n", "")],
    "Llama is cast before": [("rope, rotation = llama", "llama.bfloat16()\nrope, rotation = llama")],
    "no autocast for Llama": [
        ('with torch.autocast("cpu", HALF):', 'with torch.autocast("cpu", HALF, enabled=False):')
    ],
    "Llama's weights stay bf16": [("cached(llama.float())", "cached(llama.bfloat16())")],
    "a sound one among the wrong": [('WRONG["starts at 1"] = lambda x, p: R(x, p + 1)', 'WRONG["starts at 1"] = R')],
    "a wrong one among the sound": [
        ('"halves swapped in q and k": lambda x, p: R(x, p)', '"halves swapped in q and k": lambda x, p: R(x, p + 1)')
    ],
    "one convention, four times": [
        ("module.apply_rotary_pos_emb(q, k, *rope(q, p))", "modeling_llama.apply_rotary_pos_emb(q, k, *rope(q, p))")
    ],
}
