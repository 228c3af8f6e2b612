"""Mistakes in the solutions of exercises, which each exercise's own check must refuse: see test_exercises.py.

(lesson, function) -> (old text, new text, words of the hint). An old text stands in the solution, and all of it is
replaced. A check that tells a mistake from the solution holds the exercise as a mutant holds a verdict.
"""

MASK_END = "torch.cat([prompt, answer], 1).long()"
ONE_GROUP = "all(sum(again[group]) == sum(used[group]) for group in groups)"
NO_FUNCTION = "if isinstance(thing, types.FunctionType):\n            return False\n        if not isinstance("
NO_CLASS = "if isinstance(thing, type):\n            return False\n        if not isinstance("
CANARY = '{**environment, name: "max_split_size_mb:1"}'

SCALED = "centred / (rows.std(1, keepdim=True) + 1e-4)"

NEAR_MISSES = {
    ("00", "of_own_group"): [
        (" + 1e-4", "", "standard deviation of zero"),
        ("+ 1e-4", "+ 1e-9", "rounding"),
        ("rows - rows.mean(1, keepdim=True)", "rows.mean(1, keepdim=True) - rows", "flipped sign"),
        ("rows - rows.mean(1, keepdim=True)", "rows - rows.mean()", "own mean"),
        ("rows - rows.mean(1, keepdim=True)", "rows", ""),
        ("rewards.view(-1, group_size)", "rewards.view(group_size, -1)", ""),
        (SCALED, "centred", "Not divided"),
        (SCALED, "centred / (rows.var(1, keepdim=True) + 1e-4)", "variance"),
        ("scaled.view(-1)", "scaled", "one per reward"),
    ],
    ("01", "guarded"): [
        ("if not norm <= 10:", "if norm > 10:", "NaN"),
        ("if not norm <= 10:", "if False:", "NaN"),
        ("if norm > 0.3:", "if False:", "Likely not clipped"),
        ("    optimizer.step()\n    return grads.Update(norm.item())", "    optimizer.step()", "The loop needs"),
        ("norm.item(), skipped=True", "norm.item()", "skipped=True"),
        ("grads.Update(norm.item())", "grads.Update(min(norm.item(), 0.3))", "before it was shortened"),
    ],
    ("01", "diagnosis"): [
        ('return "step", far[0]', 'return "step", far[0] + 1', "and it was ('step',"),
        ('return "loss", lost[0] + 1', 'return "loss", lost[0]', "and it was ('loss',"),
    ],
    ("02", "add_up"): [("parameter.grad.add_(gradient)", "parameter.grad.copy_(gradient)", "")],
    ("03", "k2"): [
        ("d.square() / 2", "d.clamp(max=10).exp() - d - 1", "It should"),
        ("d.square() / 2", "d.clamp(-3, 3).square() / 2", "It should pull"),
        ("d.square() / 2", "-d", "It should be 0.05"),
        ("d.square() / 2", "d.square()", "It should be 0.05"),
    ],
    ("03", "huber"): [
        ("torch.where(d < 0.5, d.square() / 2, d / 2 - 0.125)", "d.square() / 2", "by 1 at most"),
        ("torch.where(d < 0.5, d.square() / 2, d / 2 - 0.125)", "d", "It should be 0.05 there"),
        ("d / 2 - 0.125)", "0.5 + 0 * d)", "It should"),
    ],
    ("03", "diagnosis"): [
        ("> 1e-3", "> 0.1", "it was 'reference'"),
        ('["highest KL, β = 1e-8"] > 100', '["highest KL, β = 1e-8"] > 1e6', "it was 'rate'"),
    ],
    ("03-more", "my_kl"): [
        ("(logp - old_logp).exp()", "(logp - old_logp).exp().detach()", "gradient flow"),
        ("ratio * (logp - ref_logp)", "ratio * (logp - ref_logp).square() / 2", "Weigh each token"),
        ("ratio * (logp - ref_logp)", "logp - ref_logp", ""),
    ],
    ("04", "diagnosed"): [
        ('"greedy" if len(over_all) == 1 else "seeded in each row"', '"greedy"', ""),
        ('"sure of its first token" if len(over_all) == 1 else ', "", ""),
    ],
    ("05", "diagnosed"): [("held[-1] - held[1] > short", "held[0] - held[1] > short", "")],
    ("06", "mended_norms"): [
        ("    for block", "    model.bfloat16()\n    for block", "have changed"),
        ("output.to(inputs[0].dtype)", "inputs[0]", "something else"),
    ],
    ("07", "which_is_read"): [
        (f"name in environment and not starts({CANARY})", "True", "expected"),
        ("name in environment and ", "", "expected"),
        (f" and not starts({CANARY})", "", "expected"),
        (CANARY, '{name: "max_split_size_mb:1"}', "expected"),
    ],
    ("08", "my_solution"): [
        ("do_sample=True, ", "", "nothing was drawn"),
        ('"top_k": 0, ', "", ""),
        ('"top_p": 1.0, ', "", ""),
        (', "min_p": 0.0', "", ""),
        ("max_new_tokens=4, ", "", ""),
        ("    off =", "    model.generation_config.update(top_k=0)\n    off =", "was changed"),
    ],
    ("08", "named_cause"): [('    if low <= 0:\n        return "cannot tell"\n', "", "")],
    ("09", "found_missing"): [
        ("ids.min() < 0 or ", "", ""),
        ("ids.max() >= ", "ids.max() > ", ""),
        ("model.get_input_embeddings().num_embeddings", "model.config.vocab_size", ""),
        ("ids.shape[1] > ", "ids.shape[1] >= ", ""),
        ("        if ids.shape[1]", "        elif ids.shape[1]", ""),
        ('missing.append((name, "positions"))', "pass", ""),
    ],
    ("10", "solved"): [(" * world", "", "times"), ("total(mask.sum())", "mask.sum() / world", "its own tokens")],
    ("11", "chunked"): [
        ("checkpoint(of_a_chunk, *pair, use_reentrant=False)", "of_a_chunk(*pair)", "Too much is held"),
        ("torch.cat(chunks, 1)", "torch.cat(chunks, 1).detach().requires_grad_()", "not those of the formula"),
        ("torch.cat(chunks, 1)", "torch.cat(chunks, 1).mean(1)", "one log-prob for each token"),
    ],
    ("12", "masked"): [("rewards.view(", "rewards.nan_to_num(0.0).view(", "filled with 0")],
    ("13", "refreshed"): [
        ("importlib.reload(trainer.module)", "pass", "`trainer.reward` still"),
        ("    trainer.restart_worker()", "", "`trainer.worker` still"),
        ("    trainer.reward.rounds = rounds\n", "", "5 rounds"),
    ],
    ("13", "holders_found"): [
        ("any(is_old(one) for one in thing)", "False", "Kernel "),
        ("thing = type(thing)", "return False", "Kernel "),
        ("if not isinstance(", NO_FUNCTION, "Kernel "),
        ("if not isinstance(", NO_CLASS, "Kernel "),
        ("thing.__module__ == module.__name__", "hasattr(module, thing.__name__)", "Kernel "),
    ],
    ("14", "gspo_of_each_length"): [
        ("length = mask.sum(1)", "length = torch.full_like(advantages, mask.shape[1])", "tokens that count"),
        ("-torch.minimum(ratio * advantages, bounded * advantages)", "-bounded * advantages", "keeps its gradient"),
        ("token_range / length", "token_range / mask.shape[1]", ""),
    ],
    ("14", "clip_of"): [("x *= 1.05", "x *= 2", ""), ('"token" if others_stay else "sequence"', '"sequence"', "")],
    ("15", "part"): [
        ("max(moments)", "sum(moments)", "one after the other"),
        ("0.9 - used / card", "1 - used / card", "tenth"),
        ("max(0.0, 0.9 - used / card)", "0.9 - used / card", "0, not less"),
    ],
    ("15", "at_once"): [
        ("max(sum(moments[model] for model in one) for one in phases)", "max(moments.values())", "moments meet"),
        ("max(sum(", "sum(sum(", "one after the other"),
        ("sum(standing.values()) + ", "", "in every phase"),
    ],
    ("16", "made_mask"): [
        ("columns >= width - prompt_lengths[:, None]", "ids[:, :width] != eos", "up to its first end token"),
        ("(ends.cumsum(1) - ends) == 0", "ends == 0", "does not say which"),
        ("(ends.cumsum(1) - ends) == 0", "ends.cumsum(1) == 0", ""),
        (MASK_END, "prompt, answer", "one tensor"),
        (MASK_END, "answer.long()", "as large as ids"),
    ],
    ("16", "cause"): [
        ('    if apart(zeros, fives) > 1e-3:\n        return "mask"\n', "", ""),
        ("token=0", "token=5", ""),
    ],
    ("17", "dealt_to_pairs"): [
        ("rows[pair::pairs], seed + rank", "rows[rank::world], seed + rank", ""),  # a row of its own for each process
        ("rows[pair::pairs], seed + rank", "rows[pair::pairs], seed + pair", ""),  # copies in a pair
        ("rows[pair::pairs], seed + rank", "rows[pair::pairs], seed + rank % 2", ""),  # pairs with equal dice
        ("rows[pair::pairs], seed + rank", "rows[rank % 2 :: 2], seed + rank", ""),
        ("rows[pair::pairs], seed + rank", "rows, seed + rank", ""),
    ],
    ("17", "diagnosed"): [
        ('process["prompts"], process["completions"]', 'process["prompts"], []', ""),
        ('"spread group" if log[0]["prompts"] == log[1]["prompts"] else ', "", ""),
    ],
    ("18", "graded_again"): [
        (ONE_GROUP, "sum(again) == sum(used)", ""),
        (ONE_GROUP, "True", ""),
        ("all(given >= strict for given, strict in zip(used, again, strict=True))", "True", ""),
    ],
}

# Another form of the right answer, in the same manner, which the check must take.
ALSO_RIGHT = {
    ("13", "refreshed"): (
        "trainer.reward = trainer.module.Reward()",
        "trainer.reward.__class__ = trainer.module.Reward",
    ),
    ("16", "made_mask"): (MASK_END, "torch.cat([prompt, answer], 1)"),
    ("17", "dealt_to_pairs"): ("seed + rank", "7 * seed + rank"),
}
