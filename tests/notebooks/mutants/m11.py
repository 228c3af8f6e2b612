"""Mistakes in lesson 11 under which its verdicts must fail."""

MUTANTS = {
    "the logits are taken for two bytes each": [
        ("logits = ROWS * (PROMPT + NEW) * VOCABULARY * FLOAT32", "logits = ROWS * (PROMPT + NEW) * VOCABULARY * 2")
    ],
    "the card is larger, and another tensor is refused": [
        ("props.refusal_of(update, card_gib=8)", "props.refusal_of(update, card_gib=9)")
    ],
    "two parts only": [
        ("def update_in_parts(model, optimizer, rows, parts=4)", "def update_in_parts(model, optimizer, rows, parts=2)")
    ],
    "each part is divided by its own answer tokens": [
        (
            "loss = grpo_loss(model, part) / answer_tokens\n        loss.backward()",
            "loss = grpo_loss(model, part) / part.counted.sum()\n        loss.backward()",
        )
    ],
    "the last part is forgotten": [("for part in rows.split(parts):\n", "for part in rows.split(parts)[:-1]:\n")],
    "the GELU is taken for one tensor": [("tokens * 23 * WIDTH", "tokens * 11 * WIDTH")],
    "the prompt's logits are forgotten": [("(tokens + 2 * rows * new) * VOCABULARY", "(3 * rows * new) * VOCABULARY")],
    "all weights go through at once in both arms": [
        ('{"update": update_in_parts, "lora": 0}', '{"update": update, "lora": 0 + 0}')
    ],
    "scoring forgets its parts": [
        ('{"in parts": {"update": score_in_parts}}', '{"in parts": {"update": partial(score_in_parts, parts=1)}}')
    ],
    "every part has a backward pass in both arms": [('{"update": one_backward}', '{"update": update_in_parts}')],
    "the leak is a longer batch": [('"new_tokens": [128] * 9, "keep_logits": True', '"new_tokens": [128, 512]')],
    "the longer batch is a leak": [('longer = card | {"new_tokens": [128, 512]}', "longer = leak")],
}
