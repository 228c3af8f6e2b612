"""Deliberate mistakes in lesson 16: see tests/notebooks/claims.py."""

MUTANTS = {
    "the bug hands over the positions": [
        (
            "logits = model(input_ids=ids, attention_mask=mask).logits  # [B, T0 + T, V]",
            "logits = model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits",
        )
    ],
    "the fix counts columns": [
        (
            "logits = model(input_ids=ids, attention_mask=mask, position_ids=position_ids).logits",
            "logits = model(input_ids=ids, attention_mask=mask).logits",
        )
    ],
    "nobody learns": [("props.learn, model=MODEL, device=DEVICE", "props.learn, model=MODEL, rounds=1")],
    "bug and fix exchanged": [
        ('"bug": {SEED: bug} | sandbox', '"fix": {SEED: bug} | sandbox'),
        ('"fix": {SEED: healthy} | sandbox', '"bug": {SEED: healthy} | sandbox'),
    ],
    "neither hands over both": [
        (
            "logp = model(input_ids=ids).logits",
            "logp = model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits",
        )
    ],
    "only the new: the new is right": [
        (
            '"only the new": {"new": score, "old": mended, "ref": mended}',
            '"only the new": {"new": mended, "old": mended, "ref": mended}',
        )
    ],
    "only the old: the old is right": [
        (
            '"only the old": {"new": mended, "old": score, "ref": mended}',
            '"only the old": {"new": mended, "old": mended, "ref": mended}',
        )
    ],
    "only the reference: the reference is right": [
        (
            '"only the reference": {"new": mended, "old": mended, "ref": score}',
            '"only the reference": {"new": mended, "old": mended, "ref": mended}',
        )
    ],
    "all three: all are right": [
        (
            '"all three": {"new": score, "old": score, "ref": score}',
            '"all three": {"new": mended, "old": mended, "ref": mended}',
        )
    ],
    "both leads at the sampler's positions": [
        ('"lead from 0": mended, "lead from 4": score', '"lead from 0": mended, "lead from 4": mended')
    ],
    "the two models exchanged": [
        (
            '{"GPT-2": policy.model, "Qwen2": props.rotary(SEED, policy.device)}',
            '{"Qwen2": policy.model, "GPT-2": props.rotary(SEED, policy.device)}',
        )
    ],
    "the distances stay": [("position_ids = 2 * (mask.cumsum(1)", "position_ids = 4 + (mask.cumsum(1)")],
    "the forgetful scorer does not forget": [("everything = torch.ones_like(mask)", "everything = mask")],
}
