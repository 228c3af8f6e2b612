"""Mistakes in lesson 07 under which its verdicts must fail."""

MUTANTS = {
    "the late process sets another text": [
        ("late = sandbox.run(process, configure, DEVICE", "late = sandbox.run(process, setter, DEVICE"),
        ("def configure(", "def setter():\n    os.environ[NEW] = CANARY\n\n\ndef configure("),
    ],
    "a process that warns": [
        ("    first_use(device)  # training goes on", "    import sys\n\n    print('too late', file=sys.stderr)")
    ],
    "early and late exchanged": [
        ("in_time = sandbox.run(process, canary, DEVICE, early=True", "in_time = sandbox.run(process, canary, DEVICE"),
        (
            "too_late = sandbox.run(process, canary, DEVICE",
            "too_late = sandbox.run(process, canary, DEVICE, early=True",
        ),
    ],
    "the first use comes last": [("    first_use(device)  # the model goes to the device\n", "")],
    "the setter gets a text that is allowed": [
        ("_accelerator_setAllocatorSettings(CANARY)", "_accelerator_setAllocatorSettings(ON)")
    ],
    "no canary in the old name": [("{OLD: CANARY, NEW: ON}", "{OLD: ON, NEW: ON}")],
    "the two of both exchanged": [
        ("{OLD: ON, NEW: CANARY}", "{OLD: CANARY, NEW: 'max_split_size_mb:64'}"),
        ("{OLD: CANARY, NEW: ON}", "{OLD: ON, NEW: CANARY}"),
    ],
    "the unknown name is the old one": [('"PYTORCH_CUDA_ALLOCATOR_CONF": CANARY', '"PYTORCH_CUDA_ALLOC_CONF": CANARY')],
    "a typo in the value": [("expandible_segments:True", "expandable_segments:true")],
    "the table of another version": [("explain(None, env, torch.__version__)", 'explain(None, env, "2.9.1")')],
    "a card with room": [("CARD_GIB = 3.6", "CARD_GIB = 4.5")],
    "a card too small for both": [("CARD_GIB = 3.6", "CARD_GIB = 3.0")],
    "the setting is not in force": [("Allocator(CARD), Allocator(CARD, ON)", "Allocator(CARD), Allocator(CARD)")],
    "the refusal of a leak": [
        (
            "(stopped, no), (_, other) =",
            "requests = [r for r in requests if r[1] or r[0] > 20000]\n(stopped, no), (_, other) =",
        )
    ],
    "the twin has the default too": [("twin = Allocator(CARD, ON)", "twin = Allocator(CARD)")],
    "the sizes are rounded for everyone": [('"default": "",', '"default": "roundup_power2_divisions:8",')],
    "a limit above every block": [('"max_split_size_mb:64",', '"max_split_size_mb:4096",')],
    "the control keeps the narrow fit": [(",max_non_split_rounding_mb:4096", "")],
    "two settings fit": [('"garbage_collection_threshold:0.6",\n}', "ON,\n}")],
    "no memory fraction": [("given_back(THRESHOLD + FRACTION)", "given_back(THRESHOLD)")],
    "a memory fraction for both": [("given_back(THRESHOLD), given", "given_back(THRESHOLD + FRACTION), given")],
    "the small card is large": [("int(2.5 * GIB), 0)", "int(4.5 * GIB), 0)")],
    "nothing leaks": [("(leaking(requests), CARD, 0)", "(requests, CARD, 0)")],
    "the neighbour is gone": [("int(1.2 * GIB)),", "int(0.8 * GIB)),")],
    "with and without exchanged": [
        ("Allocator(size, others=others)", "Allocator(size, ON, others=others)"),
        (
            "_, on[name] = play(calls, Allocator(size, ON, others=others))",
            "_, on[name] = play(calls, Allocator(size, others=others))",
        ),
    ],
    "a leak on a small card": [("(leaking(requests), CARD, 0)", "(leaking(requests), int(2.7 * GIB), 0)")],
    "a leak read from the lesson's own refusal": [
        ('leak = owner(off["references kept"])', 'leak = owner(off["ignored setting"])')
    ],
    "emptied with the setting in force": [("everywhere = Emptying(CARD)", "everywhere = Emptying(CARD, ON)")],
    "nothing is emptied": [("            self.empty_cache()", "            pass")],
    "a right environment among the wrong ones": [
        ('"all else forgotten": lambda v, env: {OLD: ON}', '"sound": environment')
    ],
    "the fix is the report's line": [
        ('{**environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}', '{**environ, "PYTORCH_ALLOC_CONF": ON}')
    ],
}
