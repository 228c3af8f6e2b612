"""Mistakes in lesson 11 under which its verdicts must fail."""

MUTANTS = {
    "the card is larger, and another tensor is refused": [
        (
            '{"at once": {"update": update, **RUN}}, cards=[8])["at once"]',
            '{"at once": {"update": update, **RUN}}, cards=[8.9])["at once"]',
        ),
        ("print(whole.refused[8].split", "print(whole.refused[8.9].split"),
        ("owner(whole.refused[8])", "owner(whole.refused[8.9])"),
    ],
    "the GELU is taken for one tensor": [("tokens * 23 * WIDTH", "tokens * 11 * WIDTH")],
    "the prompt's logits are forgotten": [("(tokens + 2 * rows * new) * VOCABULARY", "(3 * rows * new) * VOCABULARY")],
    "two parts only": [
        ("def update_in_parts(model, optimizer, rows, parts=4)", "def update_in_parts(model, optimizer, rows, parts=2)")
    ],
    "each part is divided by its own answer tokens": [
        ("    answer_tokens = rows.counted.sum()  # of all rows, not of the part\n", ""),
        ("loss = grpo_loss(model, part) / answer_tokens", "loss = grpo_loss(model, part) / part.counted.sum() / parts"),
    ],
    "the own count is the count of all": [
        (
            "grpo_loss(model, part) / part.counted.sum() / parts  # the part's own",
            "grpo_loss(model, part) / rows.counted.sum()  # the part's own",
        )
    ],
    "every part has a backward pass in both arms": [
        ('"4 parts, one backward": {"update": one_backward}', '"4 parts, one backward": {"update": in_parts}')
    ],
    "checkpointing is not on": [
        ('{"update": update, "checkpointing": True}', '{"update": update, "checkpointing": False}')
    ],
    "what stands is forgotten": [("return sum(standing) + max(moments, default=0)", "return max(moments, default=0)")],
    "the moments are added up": [("sum(standing) + max(moments, default=0)", "sum(standing) + sum(moments)")],
    "the step is a short one": [("prompt=128, new=128)", "prompt=32, new=32)")],
    "the step is a long one": [("prompt=128, new=128)", "prompt=128, new=256)")],
    "the plan's update in parts is the one at once": [('"4 parts": in_parts, "chec', '"4 parts": update, "chec')],
}
