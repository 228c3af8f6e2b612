"""Mistakes in the solutions of exercises, which each exercise's own check must refuse: see test_exercises.py.

(lesson, function) -> (old text, new text, words of the hint). An old text stands in the solution, and all of it is
replaced. A check that tells a mistake from the solution holds the exercise as a mutant holds a verdict.
"""

NO_FUNCTION = "if isinstance(thing, types.FunctionType):\n            return False\n        if not isinstance("
NO_CLASS = "if isinstance(thing, type):\n            return False\n        if not isinstance("
IN_CANARY = '{**environment, name: "max_split_size_mb:1"}'
IN_FORCE = '{**inherited, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}'

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
    ("02", "add_up"): [
        ("parameter.grad.add_(gradient)", "parameter.grad.copy_(gradient)", "Only the last micro-batch"),
        ("parameter.grad.add_(gradient)", "pass", "Only the first micro-batch"),
        ("gradient.clone()", "gradient", "keeps a reference"),
        ("parameter.grad.add_(gradient)", "parameter.grad = (parameter.grad + gradient) / 2", ""),
    ],
    ("02", "diagnosis"): [
        ('log["distance"] > 0.1', 'log["norm"] == 0', "Run"),
        ('log["tied, first"] == 1 and', "False and", "it was 'reward'"),
        (' and log["tied, last"] == 1', "", "it was 'cannot tell'"),
        ('log["changed"] == 0', 'log["norm"] == 0', "it was 'optimizer'"),
        ("< 1e-4", "== 0", "it was 'rate'"),
    ],
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
    ("03-more", "ratio_times_k1"): [
        ("(logp - old_logp).exp()", "(logp - old_logp).exp().detach()", "gradient flow"),
        ("ratio * (logp - ref_logp)", "ratio * (logp - ref_logp).square() / 2", "How much more often"),
        ("ratio * (logp - ref_logp)", "logp - ref_logp", ""),
    ],
    ("04", "rows_first"): [
        ("logits.repeat_interleave(num_samples, 0)", "logits.repeat(num_samples, 1)", "a token of prompt 2"),
        ("return sample(rows)", "return rows.argmax(-1)", "`sample` must draw them all"),
        ("return sample(rows)", "return sample(logits).repeat_interleave(num_samples)", "drawn once and copied"),
    ],
    ("04", "diagnosis"): [
        ("> 0.07", "> 0.4", "it was 'token copied'"),
        ("> 0.98", "> 0.3", "it was 'token copied'"),
        ("> 0.25", "> 0.02", "it was 'healthy'"),
    ],
    ("05", "evaluate_fixed"): [
        (".loss.item()", "", "What does `kept` refer to?"),
        (".loss.item()", ".loss", "is no number"),
        (", torch.no_grad()", "", "takes too much while it runs"),
        ("evaluating(model), ", "", "training mode"),
        ("for ids in batches:", "for ids in batches[:1]:", "for each batch"),
    ],
    ("05", "diagnosed"): [
        ("after - before > 0.15", "after > 0.15", "it was 'replaced'"),
        ("before - after > 0.15", "before - after > 3", "it was 'update'"),
        ("if any(between):", "if False:", "it was 'update'"),
        ("count(True) > 1", "count(True) > 0", "it was 'replaced'"),
    ],
    ("06", "cast_back"): [
        ("q_turned.to(q.dtype), k_turned.to(k.dtype)", "q_turned, k_turned", "A bfloat16 key comes out as float32"),
        ("k_turned.to(k.dtype)", "k_turned", "A bfloat16 key comes out as float32"),
        ("k_turned.to(k.dtype)", "k_turned.bfloat16()", "A float16 key comes out as bfloat16"),
        ("rotary(q, k, cos, sin, unsqueeze_dim)", "rotary(q, k, cos.to(q.dtype), sin.to(q.dtype))", "rounded once"),
        ("rotary(q, k, cos, sin, unsqueeze_dim)", "rotary(q, k, cos.bfloat16(), sin, unsqueeze_dim)", "The query has"),
        ("k_turned.to(k.dtype)", "k", "The key has other numbers"),
        ("q_turned.to(q.dtype), k_turned.to(k.dtype)", "q_turned.to(q.dtype)", "It returned Tensor"),
        ("k_turned.to(k.dtype)", "k_turned.to(k.dtype).transpose(1, 2)", "The key has the shape"),
    ],
    ("06", "diagnosis"): [
        ('log["key, before the rotation"]', 'log["key, after the rotation"]', "it was 'rotation'"),
        ('log["key, after the rotation"] == "float32"', "False", "it was 'rotation'"),
        (
            'return "store" if log["key, in the cache"] == "float32" else "nothing"',
            'return "store"',
            "it was 'nothing'",
        ),
        ('log["key, made"] == "float32"', "False", "it was 'no autocast'"),
    ],
    ("06", "mended_norms"): [
        ("        block.self_attn.k_norm", "        # block.self_attn.k_norm", "Where is the key float32"),
        ("    for block", "    model.bfloat16()\n    for block", "have changed"),
        ("output.to(inputs[0].dtype)", "inputs[0]", "something else"),
    ],
    ("07", "environment_in_force"): [
        (IN_FORCE, '{**inherited, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}', "are refused"),
        (IN_FORCE, '{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}', "Leave the other variables"),
        (IN_FORCE, '{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **inherited}', "are refused"),
        (IN_FORCE, 'inherited.pop("PYTORCH_CUDA_ALLOC_CONF", None)', "a dict of variables is expected"),
        ("segments:True", "segments:true", "refuses to start"),
        ('"expandable_segments:True"', "True", "names and values are texts"),
    ],
    ("07", "by_canary"): [
        ("name in environment and not", "not", "the settings come from neither"),
        (IN_CANARY, '{name: "max_split_size_mb:1"}', "the settings come from"),
        ("size_mb:1", "size_mb:20", "starts."),
        ("not starts", "starts", "it says PYTORCH_ALLOC_CONF"),
        ('("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")', '("PYTORCH_ALLOC_CONF",)', "it says none"),
    ],
    ("08", "drawn"): [
        ("do_sample=True, ", "", "nothing was drawn"),
        ('"top_k": 0, ', "", ""),
        ('"top_p": 1.0, ', "", ""),
        (', "min_p": 0.0', "", ""),
        ("max_new_tokens=4", "max_new_tokens=3", "the prompts in front"),
        ("temperature=temperature", "temperature=1.0", ""),
        ("    everything =", "    model.generation_config.update(top_k=0)\n    everything =", "was changed"),
    ],
    ("08", "diagnosis"): [
        (
            '    if log["low"] <= 0:  # greedy decoding would be inside, too\n        return "cannot tell"\n',
            "",
            "it was 'cannot",
        ),
        ('"nothing drawn, or hardly" if log["count"] < log["low"] else ', "", "it was 'nothing drawn"),
        ('log["count"] < log["low"] else', 'log["count"] != log["low"] else', "it was 'one draw"),
        (' if inside else "draws, not as asked"', "", "it was 'draws"),
    ],
    ("09", "with_a_copy"): [
        ("copy.deepcopy(policy)", "policy", "share parameters"),
        (
            "copy.deepcopy(policy)",
            "AutoModelForCausalLM.from_pretrained(path)",
            "The reference has no row for the id 16",
        ),
        (
            "        policy.resize_token_embeddings(len(tokenizer))",
            "        pass",
            "The policy has no row for the id 16",
        ),
        ('padding_side="left"', 'padding_side="right"', "on the right"),
        (
            "copy.deepcopy(policy)",
            "AutoModelForCausalLM.from_pretrained(path, vocab_size=17, ignore_mismatched_sizes=True)",
            "The KL of the first update",
        ),
        (
            "policy = AutoModelForCausalLM.from_pretrained(path)",
            "policy = AutoModelForCausalLM.from_config(AutoModelForCausalLM.from_pretrained(path).config)",
            "The exam begins at",
        ),
        ("return tokenizer, policy, reference", "return policy, reference", "Return tokenizer, policy and reference"),
    ],
    ("09", "diagnosis"): [
        ('"-100" in death["said"] or ', "", "it was 'label'"),
        (' or death["smallest id"] < 0', "", "it was 'label'"),
        ('death["largest id"] >= death[model]', 'death["largest id"] > death[model]', "Death"),
        ('death["longest"] > ', 'death["columns"] > ', "it was 'none of these'"),
        ('        return "positions"', '        return "none of these"', "it was 'positions'"),
        ('("policy", "reference", "reward model")', '("policy", "reference")', "it was 'reward model'"),
    ],
    ("10", "deal_by_rank"): [
        ("rows[rank::world]", "rows", "stand once too often"),
        ("rows[rank::world]", "rows[rank::2]", "on no process"),
        ("rows[rank::world]", "rows[100 * rank :][:100]", "on no process"),
        ("rows[rank::world]", "rows[rank:]", "would wait"),
        ("random.Random(seed)", "random.Random(seed + rank)", "on no process"),
        ("random.Random(seed)", "random.Random()", "on no process"),
        ("seed + 1000 * rank", "seed", "the same draws"),
        ("seed + 1000 * rank", "1000 * rank", "another run"),
        ("rows[rank::world], generator", "rows[rank::world]", "Return two things"),
    ],
    ("10", "shared_mean"): [(" * world", "", "times"), ("total(mask.sum())", "mask.sum() / world", "its own tokens")],
    ("10", "diagnosis"): [
        ('process["prompts"], process["completions"]', 'process["prompts"], []', "it was 'same rows'"),
        ('"same rows" if log[0]["prompts"] == log[1]["prompts"] else ', "", "it was 'same rows'"),
        ('any(process["world"] != 4 for process in log)', 'log[0]["world"] == 1', "it was 'world size'"),
    ],
    ("11", "by_hand"): [
        ("tokens * 23 * WIDTH", "tokens * 22 * WIDTH", "activations"),
        ("tokens * 23 * WIDTH", "tokens * 23 * WIDTH / 1.07", "activations"),
        ("(tokens + 2 * rows * new)", "tokens", "two more tensors"),
        ("(tokens + 2 * rows * new)", "(tokens + rows * new)", "two more tensors"),
        ("WEIGHTS * 4 / GIB", "WEIGHTS * 4 / 1e9", "of how many bytes"),
    ],
    ("11", "update_in_parts"): [
        (
            "grpo_loss(model, part) / answer_tokens",
            "grpo_loss(model, part) / part.counted.sum() / parts",
            "By which number",
        ),
        ("grpo_loss(model, part) / answer_tokens", "grpo_loss(model, part)", "By which number"),
        ("rows.split(parts):", "rows.split(parts)[:-1]:", "Does every part"),
        ("    optimizer.zero_grad()\n", "", "still there"),
        ("    optimizer.step()\n", "", "was called 0 times"),
        (
            "        total += loss.detach()\n",
            "        total += loss.detach()\n        optimizer.step()\n",
            "was called 5 times",
        ),
        ("    return total", "    return total / parts", "It returned"),
        ("rows.split(parts):", "rows.split(2):", "GiB at its fullest"),
        (
            "loss.backward()  # adds to .grad, and gives the part's tensors back\n        total += loss.detach()",
            "total = total + loss\n    total.backward()\n    total = total.detach()",
            "GiB at its fullest",
        ),
    ],
    ("11", "named"): [('"Q": "all logits"', '"Q": "answer logits"', "Not yet: Q")],
    ("11", "of_a_card"): [
        ("max(moments, default=0)", "sum(moments)", "one after the other"),
        ("sum(standing) + ", "", "all the time"),
        (", default=0", "", ""),
    ],
    ("12", "of_what_came"): [
        ("rewards.view(", "rewards.nan_to_num(0.0).view(", "filled with 0"),
        ("rows - rows.nanmean(1, keepdim=True)", "rows.nanmean(1, keepdim=True) - rows", "flipped sign"),
        ("rows.nanmean(1, keepdim=True)", "rows.nanmean()", "the mean is the batch's"),
        ("(number - 1).clamp(min=1)).sqrt()", "(number - 1).clamp(min=1))", "divided by something of its own"),
        (" + 1e-4", "", "NaN"),
    ],
    ("12", "diagnosis"): [
        ("> 0.07", "> 0.95", "it was 'late by"),
        ('log["no end"] > 0.2', 'log["no end"] > 2', "it was 'cut'"),
        ('2 * log["changed, short"]', '0.5 * log["changed, short"]', "it was 'late by chance'"),
    ],
    ("13", "refreshed"): [
        ("importlib.reload(trainer.module)", "pass", "still scores with version 2"),
        ("trainer.reward = trainer.module.Reward()", "pass", "does not score with it"),
        ("    trainer.restart_worker()", "", "`trainer.worker` does not"),
        ("    trainer.reward.rounds = rounds\n", "", "5 rounds"),
        ("trainer.restart_worker()", "trainer.restart_worker(); trainer.restart_worker()", "2 workers"),
    ],
    ("13", "answered"): [
        ('"list": "o o n n"', '"list": "o n n n"', "'list'"),
        ('"stored": "o o o n"', '"stored": "o o n n"', "'stored'"),
        ('"worker": "o o o o"', '"worker": "o o o n"', "'worker'"),
    ],
    ("13", "holders_found"): [
        ("any(is_old(one) for one in thing)", "False", "Kernel "),
        ("thing = type(thing)", "return False", "Kernel "),
        ("if not isinstance(", NO_FUNCTION, "Kernel "),
        ("if not isinstance(", NO_CLASS, "Kernel "),
        ("thing.__module__ == module.__name__", "hasattr(module, thing.__name__)", "Kernel "),
    ],
    ("14", "by_length"): [
        ("mask.sum(1, keepdim=True)", "mask.shape[1] + 0 * mask.sum(1, keepdim=True)", "It should be 0.2"),
        ("mask.sum(1, keepdim=True)", "mask.sum(1)", "a number for each answer"),
        ("return one_tokens_share, one_tokens_share", "return one_tokens_share", "A pair"),
        (
            "return one_tokens_share, one_tokens_share",
            "return one_tokens_share, 0.2 + 0 * one_tokens_share",
            "above is 0.2",
        ),
        ("0.2 / mask", "0.02 / mask", "It should be"),
    ],
    ("14", "reading"): [
        ("below *= 1.05", "below *= 2", "ratio may fall"),
        ('"token" if same else "sequence"', '"sequence"', "the ratio is that of the token"),
        ("-torch.ones(1)", "torch.ones(1)", "ratio may fall"),
        ("torch.full((8,), math.log(1 - below))", "math.log(1 - below) * torch.eye(8)[0]", "ratio may fall"),
        ("min(below, 1.0)", "min(below, 0.5)", "there is no lower end"),
    ],
    ("15", "reading"): [
        ("grown(held, owned) >= max(short, 64 * MIB)", "held[-1] - owned[-1] >= short", "called a leak and are none"),
        ("others > 0.2 * total", "others > 2 * total", "'another owner'"),
        ("unallocated > 0.1 * total", "unallocated > 0.9 * total", "'fragments'"),
        ('"too big at once" if len(held) <= 2 else "a longer batch"', '"too big at once"', "'a longer batch'"),
    ],
    ("16", "positions_of"): [
        (".clamp(min=0)", "", "from 0 to T − 1"),
        ("(mask.cumsum(1) - 1).clamp(min=0)", "mask.cumsum(1)", "should get 0, 1, 2"),
        ("(mask.cumsum(1) - 1).clamp(min=0)", "torch.arange(mask.shape[1]).expand(mask.shape)", "should get 0, 1, 2"),
        (".clamp(min=0)", ".clamp(min=0).float()", "torch.float32"),
        ("mask.cumsum(1)", "mask.long().cumsum_(1)", "changed the mask"),
        (".clamp(min=0)", ".clamp(min=0)[0]", "as large as the mask"),
    ],
    ("16", "cause_of"): [
        ('    if differ(zeros, fives):\n        return "mask"\n', "", "it was 'mask'"),
        ("token=0", "token=5", "it was 'mask'"),
        ("changed[:, -1] = (ids[:, -1] + 1) % 16", "pass", "it was 'later tokens'"),
    ],
    ("17", "in_their_place"): [
        ("await asyncio.gather(*calls)", "[await call for call in asyncio.as_completed(calls)]", "and the judge says"),
        ("len(prompts), 8", "len(prompts) - 7, 8", "For 13 rows it returned"),
        ("await asyncio.gather(*calls)", "sorted(await asyncio.gather(*calls))", "and the judge says"),
    ],
    ("17", "settings_that_mend"): [
        ('{"learning_rate": 2e-4}', '{"learning_rate": 8e-4}', "For 'rate'"),
        ('{"max_completion_length": 4}', '{"mask_truncated_completions": False}', "For 'cut'"),
        ('{"top_k": 0}', '{"temperature": 2.0}', "For 'top_k'"),
        ('"format": {"reward": exact}', '"format": {"reward": last_digit}', "For 'format'"),
        ('{"optimizer": None}', '{"optimizer": of_a_copy}', "For 'optimizer'"),
        ('{"use_bias_correction_kl": True}', '{"num_iterations": 1}', "For 'KL'"),
    ],
    ("17", "diagnosis"): [
        ("kl and max(kl) == 0", "not kl", "weights stand still"),
        ('    if min(log["completions/clipped_ratio"]) > 0.8:\n        return "cut"\n', "", "it was 'cut'"),
        ('"paid anyway" if min(log["reward"]) > 0.9 else "one answer"', '"one answer"', "it was 'paid anyway'"),
    ],
    ("18", "doctor"): [
        ('log["reward"][0] > 0.9', 'log["reward"][0] > 0.1', "says 'kind grader'"),
        ('mean(log["tied groups"]) > 0.5', 'mean(log["tied groups"]) >= 0', "says 'first token'"),
        ('ask("surprise", round=5) > 5', 'ask("surprise", round=5) > 0', "surprise of round 5"),
        ('"lost gradient" if share < 0.95', '"lost gradient" if share < 2', "'nothing found'"),
    ],
}

# Another form of the right answer, in the same manner, which the check must take.
ALSO_RIGHT = {
    ("05", "evaluate_fixed"): ("torch.no_grad()", "torch.inference_mode()"),
    ("06", "cast_back"): ("q_turned.to(q.dtype)", "q_turned"),  # attention rounds the query
    ("09", "with_a_copy"): (
        'add_special_tokens({"pad_token": "[PAD]"})',
        "get_vocab()",
    ),  # the checkpoint has a padding token
    ("11", "of_a_card"): ("max(moments, default=0)", "max([0, *moments])"),
    ("10", "deal_by_rank"): ("rows[rank::world]", "rows[len(rows) // world * rank :][: len(rows) // world]"),
    ("13", "refreshed"): (
        "trainer.reward = trainer.module.Reward()",
        "trainer.reward.__class__ = trainer.module.Reward",
    ),
    ("16", "positions_of"): ("(mask.cumsum(1) - 1).clamp(min=0)", "(mask.cumsum(1) - 1) * mask"),
}
