"""Deliberate mistakes in lesson 16, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "the bug hands over the positions": [
        (
            "(input_ids=ids, attention_mask=mask).logits",
            "(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits",
        )
    ],
    "the solution counts columns": [
        (
            "    return (mask.cumsum(1) - 1).clamp(min=0)",
            "    return torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)",
        )
    ],
    "nobody learns": [('RUN = WHERE | {"rounds": 4', 'RUN = WHERE | {"rounds": 1')],
    "the new is right": [('"the new": {"new": score, "old": right', '"the new": {"new": right, "old": right')],
    "the old is right": [('"the old": {"new": right, "old": score', '"the old": {"new": right, "old": right')],
    "the reference's is right": [
        (
            '"the reference\'s": {"new": right, "old": right, "reference": score}',
            '"the reference\'s": {"new": right, "old": right, "reference": right}',
        )
    ],
    "one of all three is right": [
        ('"all three": {"new": score, "old": score', '"all three": {"new": score, "old": right')
    ],
    "both leads in rows that begin at 0": [('{"at 0": right, "at 4": score}', '{"at 0": right, "at 4": right}')],
    "the two models exchanged": [
        (
            '{"GPT-2": policy.model, "Qwen2": rotary(SEED, "cpu")}',
            '{"Qwen2": policy.model, "GPT-2": rotary(SEED, "cpu")}',
        )
    ],
}
