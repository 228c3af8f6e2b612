"""Mistakes in lesson 13 under which its verdicts must fail."""

MUTANTS = {
    "the first file has no fault": [("sum(delta) / len(delta)", "sum(rewards) / len(rewards)")],
    "the module is reloaded before the second run": [
        ("import rewards  # once more, as the cell above does", "import rewards; importlib.reload(rewards)")
    ],
    "the second text is not saved": [
        ("props.save(FILE, V2)\n\nimport rewards", "import rewards"),
    ],
    "the text is not mended": [('V1.replace("delta", "rewards")', 'V1.replace("delta", "delta ")')],
    "the marker is not raised": [('replace("self.version = 1", "self.version = 2")', 'replace("", "", 1)')],
    "autoreload in place of reload": [('"importlib.reload"), "==", 1', '"%autoreload 2"), "==", 1')],
    "both restarted in place of the kernel": [('"restart the kernel")', '"restart both")')],
    "the kernel is reloaded after the save": [
        ("props.save(FILE, V3)\n", "props.save(FILE, V3); importlib.reload(rewards)\n")
    ],
    "the third text is not saved": [("props.save(FILE, V3)\n", "\n")],
    "saved and fix exchanged": [("bug, saved, fix = (", "bug, fix, saved = (")],
    "the fix compares last digits": [
        ('V2.replace("answer[-1:] == total[-1:]", "answer == total")',
         'V2.replace("answer[-1:] == total[-1:]", "answer[-1:] == total[-1:] and True")'),
        ("rewards.append(float(answer == total))", "rewards.append(float(answer[-1:] == total[-1:] and True))"),
    ],
    "getsource is asked for what both texts have": [('mark="answer == total"', 'mark="no such line"')],
    "the situations in which the fix runs": [("situations[1:4]", "situations[3:6]")],
    "both names exist": [
        ('"rewards.py": V1, "local_torch.py": LOCAL_TORCH',
         '"rewards.py": V2, "local_torch.py": LOCAL_TORCH.replace("            import torch", "            pass")')
    ],
    "mypy is asked without the option": [("plain, checked = found[-2][\"\"], found[-1][\"\"]",
                                          "checked, plain = found[-2][\"\"], found[-1][\"\"]")],
}  # fmt: skip
