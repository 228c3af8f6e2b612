"""Deliberate mistakes in lesson 08, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "the bug draws": [
        ('FLAGS = {"temperature": 0.9, "top_p": 0.9}', 'FLAGS = {"do_sample": True, "temperature": 0.9, "top_p": 0.9}')
    ],
    "the bug in the words of another flag; few rounds; the judge makes no noise; cool and warm exchanged": [
        ('FLAGS = {"temperature": 0.9, "top_p": 0.9}', 'FLAGS = {"temperature": 1.0, "top_k": 3}'),
        ("ROUNDS = 16", "ROUNDS = 1"),
        ("(ignored, rewards_of(ignored) + noise)", "(ignored, rewards_of(ignored))"),
        (
            "cool, warm = roll(do_sample=True, temperature=0.6), roll(do_sample=True, temperature=1.2)",
            "cool, warm = roll(do_sample=True, temperature=1.2), roll(do_sample=True, temperature=0.6)",
        ),
    ],
    "the fix is the bug": [
        ("flags = rollout.generation_kwargs(do_sample=True, temperature=0.9)", "flags = FLAGS"),
        (
            "ignored, drawn = roll(**FLAGS), roll(do_sample=True, **FLAGS)",
            "ignored, drawn = roll(**FLAGS), roll(**FLAGS)",
        ),
        ('"do_sample=True": roll(do_sample=True, temperature=0.9)}', '"do_sample=True": roll(temperature=0.9)}'),
        ("for p in (SUMS, SOLVED))", "for p in (SOLVED, SUMS))"),
        (
            "old = POLICY.model.compute_transition_scores(made.sequences, made.scores, normalize_logits=True)",
            "old = POLICY.model.compute_transition_scores(made.sequences, made.scores)",
        ),
    ],
    "the fix does not learn; the blind reward sees; sampled at 1; the filter is off; the model ships nothing": [
        ('"optimizer": "sgd", "lr": 0.1}', '"optimizer": "sgd", "lr": 1e-9}'),
        ('float("<answer>" in text)', 'float("1" in text)'),
        (
            'COOL, CUT = {"temperature": 0.5}, {"temperature": 1.6, "top_p": 0.7}',
            'COOL, CUT = {"temperature": 1.0}, {"temperature": 1.6}',
        ),
        (
            "own = GenerationConfig(do_sample=True, temperature=0.3, top_p=0.7, **special)",
            "own = GenerationConfig(do_sample=True, **special)",
        ),
        ('"a fixed 0.6": lambda z, t: draw(z, 0.6)}', '"a fixed 0.6": draw}'),
        ("(0.3, 0.6, 1.0, 2.0)", "(0.3, 0.6, 1.0)"),
    ],
    "every rollout draws; a round is missing": [
        (
            "return with_transformers(policy, prompts, 8, 4, dice, flags)",
            'return with_transformers(policy, prompts, 8, 4, dice, flags | {"do_sample": True})',
        ),
        (
            "for step in train(policy, device=device, rounds=rounds, **settings)",
            "for step in train(policy, device=device, rounds=rounds - 1, **settings)",
        ),
    ],
    "tokens of the row before; sums at 0.5; no warper in the list; not all said as None": [
        (
            "zip(logits.split(20), tokens.split(20), strict=True)",
            "zip(logits.split(20), tokens.roll(1).split(20), strict=True)",
        ),
        (
            "sums, solved = (roll(p, do_sample=True, temperature=0.9)",
            "sums, solved = (roll(p, do_sample=True, temperature=0.5)",
        ),
        (
            'TWICE = {"do_sample": True, "temperature": 0.5} | list_of(0.5)',
            'TWICE = {"do_sample": True, "temperature": 0.5}',
        ),
        ('NONE = {"temperature": None, "top_p": None, "top_k": None}', 'NONE = {"top_k": None}'),
    ],
    "not all said; a penalty of nothing; a sampler that is off": [
        (
            "said = rollout.generation_kwargs(do_sample=True, temperature=1.0)",
            'said = {"do_sample": True, "temperature": 1.0}',
        ),
        ('{"repetition_penalty": 2.0}}', '{"repetition_penalty": 1.0}}'),
        (
            "    return torch.multinomial((logits / t).softmax(-1), 1)[:, 0]",
            "    return torch.multinomial((logits / t**2).softmax(-1), 1)[:, 0]",
        ),
    ],
    "the prompt counts; enough rows; scored at another temperature; noise of one reward": [
        ("RepetitionPenaltyLogitsProcessor(2.0, prompt_ignore_length=WIDTH)", "RepetitionPenaltyLogitsProcessor(2.0)"),
        ("checks.temperature(draw, rows=20)", "checks.temperature(draw, rows=1000)"),
        ("new, logits = scored(out, t)", "new, logits = scored(out, 0.5)"),
        ("torch.rand(1024, generator", "torch.zeros(1024) + 0 * torch.rand(1024, generator"),
    ],
}
