"""Mistakes in lesson 13 under which its verdicts must fail."""

MUTANTS = {
    "the first file has no fault": [("sum(delta) / len(delta)", "sum(rewards) / len(rewards)")],
    "the module is reloaded before the second run": [
        ("lab.save(FILE, V2)\n", 'lab.save(FILE, V2)\nimportlib.reload(importlib.import_module("rewards"))\n')
    ],
    "the new instance comes with a new name": [
        ('"new_instance": "reward = Reward()"', '"new_instance": "from rewards import Reward; reward = Reward()"')
    ],
    "an import in place of the reload": [('"reload": "importlib.reload(rewards)"', '"reload": "import rewards"')],
    "the third text is not saved": [("here.save(V3)", "here.save(V2)")],
    "the third text compares last digits": [
        ('"answer[-1:] == total[-1:]", "answer == total"', '"answer[-1:] == total[-1:]", "total[-1:] == answer[-1:]"')
    ],
    "the bug is refreshed": [('arms = {"bug": {"refresh": nothing}', 'arms = {"bug": {"refresh": refresh}')],
    "the instance is kept": [("trainer.reward = trainer.module.Reward()", "pass")],
    "the worker is not restarted": [("    trainer.restart_worker()", "    pass")],
    "the new kernel in place of the other remedies": [("holders.REMEDIES[:3]", "holders.REMEDIES[3:]")],
    "the reload in place of the new kernel": [
        ('holders.old_after(measured, "new kernel")', 'holders.old_after(measured, "reload")')
    ],
    "getsource is asked for what neither text has": [('mark="answer == total"', 'mark="no such line"')],
    "the fix was there before the save": [("holders.situations(V2, V3,", "holders.situations(V3, V3,")],
}
