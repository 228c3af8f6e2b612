"""Deliberate mistakes in lesson 09: see tests/notebooks/claims.py."""

MUTANTS = {
    "the bug is the fix": [
        (
            "    reference = AutoModelForCausalLM.from_pretrained(path)\n    return",
            "    reference = __import__('copy').deepcopy(policy)\n    return",
        )
    ],
    "the fix is the bug": [
        ("AutoModelForCausalLM.from_pretrained(saved)", "AutoModelForCausalLM.from_pretrained(path)")
    ],
    "the reference is another model": [
        (
            "        reference = AutoModelForCausalLM.from_pretrained(saved)\n",
            "        reference = AutoModelForCausalLM.from_pretrained(saved)\n"
            "        reference.transformer.ln_f.weight.data += 1\n",
        )
    ],
    "the fix is not run": [("load_models=mended, **common", "load_models=load_models, **common")],
    "the bug is not run": [("load_models=load_models, **common", "load_models=mended, **common")],
    "nobody learns": [("load_models=mended, **common", "load_models=mended, rounds=1, **common")],
    "the policy asked twice": [
        ('"reference, with id 16": ask(reference, ids)', '"reference, with id 16": ask(policy, ids)')
    ],
    "the id stays": [("ids.masked_fill(ids == 16, 15)", "ids.masked_fill(ids == 15, 16)")],
    "a position that is there": [("lookup(32, 32)", "lookup(33, 32)")],
    "a gathered label that is an embedding": [
        ('"gather: a label": gathered_label', '"gather: a label": lookup(16, 17)')
    ],
    "the config of a model that was resized": [("lying = load_models(**FROM)[2]", "lying = load_models(**FROM)[1]")],
    "not clamped": [("marked.clamp(max=15)", "marked.clamp(max=16)")],
}
