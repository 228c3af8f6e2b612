"""Deliberate mistakes in lesson 00: see tests/notebooks/claims.py."""

EIGHT = "loss, numbers = loss_of(logp, old_logp, old_logp, advantages, mask, beta)"

MUTANTS = {
    "the control steps too": [("if learn:", "if learn or inner:")],
    "the rewards are turned round": [
        (
            "rewards = torch.tensor(rewards, device=policy.device)",
            "rewards = 1 - torch.tensor(rewards, device=policy.device)",
        )
    ],
    "the loop does not call the given advantage": [
        ("advantages = advantage(rewards, 8)  # [B]", "advantages = group_advantage(rewards, 8)")
    ],
    "the solution forgets the mean": [("centred = rows - rows.mean(1, keepdim=True)", "centred = rows")],
    "the solution takes the mean of the batch": [
        ("centred = rows - rows.mean(1, keepdim=True)", "centred = rows - rows.mean()")
    ],
    "the solution forgets the deviation": [
        ("scaled = centred / (rows.std(1, keepdim=True) + 1e-4)", "scaled = centred")
    ],
    "no clip": [("ratio.clamp(0.8, 1.2) * gain", "ratio * gain")],
    "another KL": [("kl = d.exp() - d - 1", "kl = d.square() / 2")],
    "the KL weighs nothing": [("(beta * kl - surrogate)", "(0.0 * kl - surrogate)")],
    "a mean over rows": [("/ mask.sum()  # a mean over", "/ len(mask)  # a mean over")],
    "the sign is not turned": [("-group_advantage(rewards, size)", "group_advantage(rewards, size)")],
    "one update a round is four": [('"one update a round": {"mu": 1', '"one update a round": {"mu": 4')],
    "rewards as they are are none": [("lambda rewards, size: rewards}", "lambda rewards, size: 0 * rewards}")],
    "the average stays": [("betas=(0.0, 0.999)", "betas=(0.9, 0.999)")],
    "both buttons have the same β": [(EIGHT, EIGHT.replace("beta", "0.04"))],
    "the eight answers are exchanged": [('["99"] * 3 + ["89"] * 5', '["89"] * 3 + ["99"] * 5')],
}
