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
    "the setter gets a text that is allowed": [
        ("_accelerator_setAllocatorSettings(CANARY)", "_accelerator_setAllocatorSettings(ON)")
    ],
    "the two of both exchanged": [
        ("{OLD: ON, NEW: CANARY}", "{OLD: CANARY, NEW: 'max_split_size_mb:64'}"),
        ("{OLD: CANARY, NEW: ON}", "{OLD: ON, NEW: CANARY}"),
    ],
    "the unknown name is the old one": [('"PYTORCH_CUDA_ALLOCATOR_CONF": CANARY', '"PYTORCH_CUDA_ALLOC_CONF": CANARY')],
    "a typo in the value": [("expandible_segments:True", "expandable_segments:true")],
    "the table of another version": [("explain(None, env, torch.__version__)", 'explain(None, env, "2.9.1")')],
    "a card with room": [("CARD_GIB = 3.6", "CARD_GIB = 4.5")],
    "a card too small for both": [("CARD_GIB = 3.6", "CARD_GIB = 3.0")],
    "the twin has the default too": [("twin = Allocator(CARD, ON)", "twin = Allocator(CARD)")],
    "the sizes are rounded for everyone": [('"default": "",', '"default": "roundup_power2_divisions:8",')],
    "the control keeps the narrow fit": [(",max_non_split_rounding_mb:4096", "")],
    "a limit above every block": [
        ('"no split above 64 MiB": "max_split_size_mb:64"', '"no split above 64 MiB": "max_split_size_mb:4096"')
    ],
    "no memory fraction": [("given_back(THRESHOLD + FRACTION)", "given_back(THRESHOLD)")],
    "the neighbour is gone": [("int(1.2 * GIB)),", "int(0.8 * GIB)),")],
    "with and without exchanged": [
        ("Allocator(size, others=others)", "Allocator(size, ON, others=others)"),
        (
            "_, on[name] = play(calls, Allocator(size, ON, others=others))",
            "_, on[name] = play(calls, Allocator(size, others=others))",
        ),
    ],
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
