"""Mistakes in lesson 13 under which its verdicts must fail."""

MUTANTS = {
    "the first file has no fault": [("sum(delta) / len(delta)", "sum(rewards) / len(rewards)")],
    "the module is reloaded before the second run": [
        ("import rewards  # the training cell once more", "import rewards; importlib.reload(rewards)")
    ],
    "the second text is not saved": [("props.save(FILE, V2)\n\nimport rewards", "import rewards")],
    "the text is not mended": [('V1.replace("delta", "rewards")', 'V1.replace("delta", "delta ")')],
    "the marker is not raised": [('replace("self.version = 1", "self.version = 2")', 'replace("", "", 1)')],
    "nothing is reloaded": [("importlib.reload(rewards)\nkept", "kept")],
    "the instance from before is made anew": [
        ("kept = props.in_this_kernel(reward,", "kept = props.in_this_kernel(rewards.Reward(),")
    ],
    "both restarted in place of the kernel": [('"restart the kernel")', '"restart both")')],
    "reload in place of a restart": [('"restart the kernel")', '"importlib.reload")')],
    "the kernel is reloaded after the save": [
        ("props.save(FILE, V3)\n", "props.save(FILE, V3); importlib.reload(rewards)\n")
    ],
    "the third text is not saved": [("props.save(FILE, V3)\n", "\n")],
    "saved and fix exchanged": [('"saved": saved, "fix": fix}', '"saved": fix, "fix": saved}')],
    "the fix compares last digits": [
        ('V2.replace("answer[-1:] == total[-1:]", "answer == total")',
         'V2.replace("answer[-1:] == total[-1:]", "answer[-1:] == total[-1:] and True")'),
        ("rewards.append(float(answer == total))", "rewards.append(float(answer[-1:] == total[-1:] and True))"),
    ],
    "getsource is asked for what neither text has": [('mark="answer == total"', 'mark="no such line"')],
    "the marker is the module's, not the function's": [
        ("props.situations(V2,",
         'props.situations(V2.replace("self.version = 2", "self.version = VERSION  # version = 2"),')
    ],
    "the situations in which the fix runs": [("situations[1:5]", "situations[3:7]")],
    "both names exist": [
        ('"rewards.py": V1, "local_torch.py": LOCAL_TORCH,',
         '"rewards.py": V2, "local_torch.py": LOCAL_TORCH.replace("            import torch", "            pass"),')
    ],
    "the sound file has a fault": [("import gc; gc.collect()", "import torch; torch.zeros(1)")],
}  # fmt: skip
