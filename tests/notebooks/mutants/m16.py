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
    "only the new: the new is right": [
        (
            '"only the new": {"new": score, "old": mended, "ref": mended}',
            '"only the new": {"new": mended, "old": mended, "ref": mended}',
        )
    ],
    "only the reference: the reference is right": [
        (
            '"only the reference": {"new": mended, "old": mended, "ref": score}',
            '"only the reference": {"new": mended, "old": mended, "ref": mended}',
        )
    ],
    "the gradient is compared with itself": [
        ("first_update(policy, SEED, true=mended, **scorers)", "first_update(policy, SEED, true=score, **scorers)")
    ],
    "the two models exchanged": [
        (
            '{"table (GPT-2)": policy.model, "rotary (Qwen2)": props.rotary(SEED, policy.device)}',
            '{"rotary (Qwen2)": policy.model, "table (GPT-2)": props.rotary(SEED, policy.device)}',
        )
    ],
    "the forgetful scorer does not forget": [
        (
            '"attention_mask": torch.ones_like(mask), "position_ids": position_ids',
            '"attention_mask": mask, "position_ids": position_ids',
        )
    ],
}
