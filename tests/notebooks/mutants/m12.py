"""Mistakes in lesson 12 under which its verdicts must fail."""

MUTANTS = {
    "the idle judge fails": [
        ("serve(scale=0, pace=0, failures=0, hangs=0)", "serve(scale=0, pace=0, failures=0.9, hangs=0)")
    ],
    "no more workers": [('"workers 4 → 8": {"workers": 8}', '"workers 4 → 8": {"workers": 4}')],
    "no shorter timeout": [('"timeout 15 → 10": {"timeout": 10}', '"timeout 15 → 10": {"timeout": 15}')],
    "64 in place of eight": [('"workers 4 → 8": {"workers": 8}', '"workers 4 → 8": {"workers": 64}')],
    "more workers with the shorter timeout": [
        ('"timeout 15 → 10": {"timeout": 10}', '"timeout 15 → 10": {"timeout": 10, "workers": 16}')
    ],
    "the live run has patience": [
        ('HASTY, LIVE = {"timeout": 10, "retries": 1}', 'HASTY, LIVE = {"timeout": 40, "retries": 4}')
    ],
    "all three are none": [('= {"workers": 8, "timeout": 10, "retries": 1}', '= {"workers": 8}')],
    "long and short exchanged": [("lost(new, False), lost(new, True)", "lost(new, True), lost(new, False)")],
    "what came exchanged with what did not": [
        ("zip(LONG, new.rewards, strict=True) if r is not None", "zip(LONG, new.rewards, strict=True) if r is None")
    ],
    "a timeout after all": [("timeout=1e6, deadline=60 * SCALE", "timeout=15, deadline=60 * SCALE")],
    "nothing is filled in": [("[reward or 0.0 for reward in rewards]", "list(rewards)")],
    "the fate of another judge": [("comes(SEED, str(", "comes(SEED + 1, str(")],
    "the fate without a timeout": [('kind == "answer" and seconds < timeout', 'kind == "answer"')],
    "the masked are zero-filled": [('"masked": {}}', '"masked": {"fill": zero_filled}}')],
    "the zero-filled are masked": [('{"zero": {"fill": zero_filled}', '{"zero": {}')],
    "times stay with their completions": [("dealt=True), ", "dealt=False), ")],
    "patience without patience": [
        ("without_waiting(SEED, timeout=15, retries=2)", "without_waiting(SEED, timeout=10, retries=1)")
    ],
    "a judge without a taste": [("* (len(c) < 3)", "* 1")],
    "not asked again": [("r for r in retold.rewards if r is not None", "r or 0.0 for r in new.rewards if r is None")],
    "filled with the mean of the group": [
        (
            "torch.where(none, got.nanmean(), got)",
            "torch.where(none, got.view(-1, 8).nanmean(1).nan_to_num(0.5).repeat_interleave(8), got)",
        )
    ],
    "answered for asked": [("(fix.tried, fix.asked, fix.retried)", "(fix.tried, fix.answered, fix.retried)")],
    "a book with each line twice": [("print(fix)\n", "print(fix)\nbook = book * 2\n")],
    "the fix is in haste": [('{"fix": {"workers": 8}}', '{"fix": {"workers": 8, "timeout": 6, "retries": 0}}')],
    "only timeouts are reasons": [("sum(r is None and bool(why)", 'sum(r is None and why == "timeout"')],
    "eight in place of 64": [('{"64": {"workers": 64}}', '{"64": {"workers": 8}}')],
    "the mask is a number": [
        ("advantage.masked_advantage(got, 8)[0][none]", "advantage.group_advantage(got.nan_to_num(0.5), 8)[none]")
    ],
    "easy and hard exchanged": [
        ("int(whole[:6].sum()), int(whole[6:].sum())", "int(whole[6:].sum()), int(whole[:6].sum())")
    ],
    "one retry in the first rows": [('"timeout": 15, "retries": 2}\nCHANGES', '"timeout": 15, "retries": 1}\nCHANGES')],
    "an ideal with more workers": [("ideal(book, workers=8, timeout=15)", "ideal(book, workers=16, timeout=15)")],
    "no worker hangs": [
        ("judge.serve(SEED, SCALE)) for _ in changes", "judge.serve(SEED, SCALE, hangs=0)) for _ in changes")
    ],
    "nothing fails": [
        ("judge.serve(SEED, SCALE)) for _ in changes", "judge.serve(SEED, SCALE, failures=0)) for _ in changes")
    ],
    "a sound one among the mistakes": [
        ('["nothing done"] = by_group(centred)', '["nothing done"] = lambda r: advantage.masked_advantage(r, 4)')
    ],
    "the library's is a mistake": [
        ("checks.missing_rewards(advantage.masked_advantage)", "checks.missing_rewards(by_group(centred))")
    ],
}  # fmt: skip
