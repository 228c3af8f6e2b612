"""Deliberate mistakes in lesson 09, each of which must break a verdict: see tests/notebooks/claims.py."""

FROM_FOLDER = "AutoModelForCausalLM.from_pretrained(path)\n"
RESIZED = "    policy.resize_token_embeddings(len(tokenizer))\n    reference = "
LOADED = "AutoModelForCausalLM.from_pretrained(path)\n    return tokenizer, policy, reference"
ONE_MORE = "reference.transformer.ln_f.weight.data += 1"

MUTANTS = {
    "the bug copies its policy": [
        (RESIZED + LOADED, RESIZED + "copy.deepcopy(policy)\n    return tokenizer, policy, reference")
    ],
    "the bug resizes nothing": [
        (f"    policy = {FROM_FOLDER}{RESIZED}", f"    policy = {FROM_FOLDER}    reference = ")
    ],
    "nobody learns": [('"rounds": 4, "pad_to', '"rounds": 1, "pad_to')],
    "the solution's reference is another model": [
        (
            "    reference = copy.deepcopy(policy)  # was",
            f"    reference = copy.deepcopy(policy)\n    {ONE_MORE}  # was",
        )
    ],
    "the reference of 17 rows has 16": [
        (
            '    if reference == "17 rows":\n        from_folder.resize',
            '    if reference == "":\n        from_folder.resize',
        )
    ],
    "clamped to a row that is not there": [("ids[0].clamp(max=15)", "ids[0].clamp(max=16)")],
    "the end token's models are not returned": [
        ("tokenizer.pad_token = tokenizer.eos_token", "tokenizer.pad_token = tokenizer.eos_token\n    return None")
    ],
    "the other size is the policy's own": [
        ("policy, AutoModelForCausalLM.from_pretrained(path, **options)", "policy, copy.deepcopy(policy)")
    ],
    "the token is padding, and is not read": [('"exam": False, "begin": "[PAD]"', '"exam": False, "begin": ""')],
    "the default draws": [("mean_resizing=True", "mean_resizing=False")],
}
