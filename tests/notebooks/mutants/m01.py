"""Deliberate mistakes in lesson 01. Each old text stands once in the lesson's code cells."""

MUTANTS = {
    "the bug has a guard": [('"update": step_anyway, "check": "off"', '"update": grads.guard(), "check": "off"')],
    "update 1 read twice": [("bug.steps[0], bug.steps[1],", "bug.steps[0], bug.steps[0],")],
    "both rows hold the KL": [('"ratio held": {"log_ratio_max": 1.0}', '"ratio held": {"kl": kl.k2}')],
    "KL held too wide": [("kl.k3_clamped(logp, ref_logp, limit=1.0)", "kl.k3_clamped(logp, ref_logp, limit=50.0)")],
    "dual clip in every column": [('"ratio clip": {}', '"ratio clip": {"dual_clip": 3.0}')],
    "no clamp in its column": [('"and clamp": {"log_ratio_max": 5.0}', '"and clamp": {}')],
    "fresh parameters are the broken ones": [
        ("rollout.generate(labkit.policy.load(policy, broken.device), prompts)", "rollout.generate(broken, prompts)")
    ],
    "the new process makes four updates": [
        ('"1"}, **RUN, **BUG', '"1"}, **{**RUN, "mu": 3}, **BUG')
    ],
    "negative row in place of zeros": [("logits.softmax(-1) * 0", "logits.softmax(-1) * -1")],
    "a token id that exists": [('"bad token id": {"shift": 100}', '"bad token id": {"shift": 0}')],
    "invalid values kept": [("cleaned = InfNanRemoveLogitsProcessor()(None, logits)", "cleaned = logits")],
    "invalid values replaced, and a norm clip": [
        ('{"generate": generate_anyway}', '{"generate": generate_anyway, "update": clip_only}')
    ],
    "the norm clip in time": [("(step_anyway if math.isfinite(norm) else clip_only)", "(clip_only)")],
    "safe generation with a guard": [
        ('"safe generation": rollout.SAFE', '"safe generation": {**rollout.SAFE, "update": grads.guard()}')
    ],
    "a guard where the norm clip is meant": [
        ("clipped, lost = one_update(no_epsilon, clip_only)", "clipped, lost = one_update(no_epsilon, grads.guard())")
    ],
    "the bug where the guard is meant": [
        ("guarded, kept = one_update(no_epsilon, grads.guard())", "guarded, kept = one_update(no_epsilon, step_anyway)")
    ],
    "0 / 0 in the cured row": [("one_update(group_advantage, clip_only)", "one_update(no_epsilon, clip_only)")],
    "the fix is the bug": [('label="fix", **SHOW, **RUN', 'label="fix", **SHOW, **RUN, **BUG')],
    "the row without updates trains": [('"no update": {"update": no_update}', '"no update": {"update": clip_only}')],
    "layers exchanged": [
        ('"clamps": {"kl": kl.k3_clamped, **CLAMPS}', '"clamps": {"kl": kl.k3_clamped, **CLAMPS, "update": clip_only}'),
        ('"norm clip 0.3": {"update": clip_only}', '"norm clip 0.3": {"update": no_update}'),
        ('"KL held at 1": HELD["KL held"]', '"KL held at 1": {"update": no_update}'),
    ],
    "clipped before it skips": [("max_norm=1e9, skip_above=10.0", "max_norm=0.3, skip_above=10.0")],
    "restore with a norm clip": [('{"check": "restore"}', '{"check": "restore", "update": clip_only}')],
    "sound updates and a factory judged": [
        (
            "(step_anyway, clip_only, grads.guard(0.3, 50.0), grads.guard, grads.guard())",
            "(grads.guard(), grads.guard(), grads.guard(), grads.guard(), grads.guard)",
        )
    ],
    "the first probability is negative": [('"zero": [0.0, 0.5, 0.5]', '"zero": [-0.1, 0.5, 0.6]')],
    "the clamp is tight": [("limit=None", "limit=2.0")],
    "the big model is NaN": [
        ("torch._foreach_zero_(list(big.parameters()))", "[p.fill_(math.nan) for p in big.parameters()]")
    ],
}  # fmt: skip
