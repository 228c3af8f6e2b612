"""Mistakes in lesson 13 under which its verdicts must fail."""

MUTANTS = {
    "no import below the use": [("        import torch\n        torch.save(", "        torch.save(")],
    "the branch imports something else": [
        ("import torch\n\n            self.histogram", "import math\n\n            self.histogram")
    ],
    "the control keeps the import": [
        ('ABOVE.replace("            import torch\\n\\n", "")  # without', 'ABOVE.replace("eight", "")  # with')
    ],
    "the metric uses the new name": [("float(delta.mean())", "float(gap.mean())")],
    "the fix is loaded": [
        (
            'HOURLY.replace("delta.mean()", "gap.mean()"))\n',
            'HOURLY.replace("delta.mean()", "gap.mean()"))\nimportlib.reload(hourly)\n',
        )
    ],
    "the fix is not saved": [('HOURLY.replace("delta.mean()", "gap.mean()")', "HOURLY")],
    "no old probe is kept": [
        (
            '"control": control.Probe()}\nprobe = probes["hourly"] = hourly.Probe()',
            '"control": control.Probe(), "hourly": hourly.Probe()}',
        )
    ],
    "the name is in the saved notebook": [
        ('SAVED = ["BETA = 0.04", REPORT.replace', 'SAVED = ["delta = 0.5", "BETA = 0.04", REPORT.replace')
    ],
    "the deleted cell was never run": [
        ('LIVED = ["delta = 0.5", "BETA = 0.04", "BETA = 0.4",', 'LIVED = ["BETA = 0.04", "BETA = 0.04",')
    ],
    "taken out of the module after the reload": [
        ("penalty, meter = losses.penalty, losses.Meter()  # as `from losses import penalty` does\n", ""),
        (
            "importlib.reload(losses)\nnew, imported",
            "importlib.reload(losses)\npenalty, meter = losses.penalty, losses.Meter()\nnew, imported",
        ),
    ],
    "no reload": [("importlib.reload(losses)\nnew, imported", "new, imported")],
    "the worker is made after the edit": [
        (
            '    losses = importlib.import_module("losses")\n    with multi',
            '    Path("losses.py").write_text(new)\n    losses = importlib.import_module("losses")\n    with multi',
        )
    ],
    "the checkout has no fix": [
        ('save("checkout/lossbox/__init__.py", NEW)', 'save("checkout/lossbox/__init__.py", LOSSES)')
    ],
    "the installed copy both times": [
        ('"checkout/notebooks", WORK / "checkout")', '"checkout/notebooks", WORK / "site")')
    ],
    "a limit that nothing reaches": [('LOWER = KL.replace("80.0", "0.01")', 'LOWER = KL.replace("80.0", "70.0")')],
    "the old code is imported again": [
        ('save("old_code.py", LOWER)  #', 'kls["old_code"] = kl_of("old_code", LOWER)  #')
    ],
    "the unused fix is used": [('"expm1(gap) - gap"', '"expm1(limited) - limited"')],
    "no canary": [('"    raise OSError\\n    gap ="', '"    gap ="')],
    "__pycache__ is deleted and the module reloaded": [
        ("'shutil.rmtree(\"__pycache__\")'", "'importlib.reload(losses)'")
    ],
    "no reload among the remedies": [('= "importlib.reload(losses)"', '= "pass"')],
    "autoreload is off": [('"%load_ext autoreload\\n%autoreload 2"', '"%load_ext autoreload\\n%autoreload 0"')],
    "restarted before the fix": [
        (
            "new_process(STORY + AFTER)",
            '(save("losses.py", LOSSES), new_process(STORY + EDIT + AFTER))[1]',
        )
    ],
    "two holders exchanged": [('"__main__.penalty", "cached": "__main__.cached"', '"__main__.cached", "cached": ""')],
    "the second text is longer": [('saved_at("BETA = 0.40\\n")  # as', 'saved_at("BETA = 0.400\\n")  # as')],
    "the probe made anew, without a reload": [('importlib.reload(hourly)\nprobe =', "probe =")],
    "the folder stays": [("FOLDER.cleanup()", "pass")],
}  # fmt: skip
