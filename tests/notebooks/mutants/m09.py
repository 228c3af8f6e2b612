"""Deliberate mistakes in lesson 09: see tests/notebooks/claims.py."""

RESIZED = "    policy.resize_token_embeddings(len(tokenizer))\n"
REFERENCE = "    reference = AutoModelForCausalLM.from_pretrained(path)\n"
PREPARED = (
    "    tokenizer = AutoTokenizer.from_pretrained(path)\n"
    "    policy = AutoModelForCausalLM.from_pretrained(path)\n" + REFERENCE
)
A_COPY = "__import__('copy').deepcopy(policy)"
CALLS = 'props.FETCHES | props.OTHERS, "cpu"'

MUTANTS = {
    "the bug is the fix": [(RESIZED + REFERENCE, RESIZED + f"    reference = {A_COPY}\n")],
    "the fix resizes nothing": [("        model.resize_token_embeddings(len(tokenizer))\n", "        pass\n")],
    "the fix's reference is another model": [
        (PREPARED, PREPARED + "    reference.transformer.ln_f.weight.data += 1\n")
    ],
    "nobody learns": [("model=PREPARED, device=DEVICE)", "model=PREPARED, device=DEVICE, rounds=1)")],
    "the policy asked twice": [
        ('"reference, with id 16": ask(reference, ids)', '"reference, with id 16": ask(policy, ids)')
    ],
    "the id stays": [("ids.masked_fill(ids == 16, 15)", "ids.masked_fill(ids == 15, 16)")],
    "a position that is there": [(CALLS, CALLS.replace(" |", " | {[*props.FETCHES][1]: props.fetch(33, 32)} |", 1))],
    "every call fetches rows": [(CALLS, 'dict.fromkeys(props.FETCHES | props.OTHERS, props.fetch(16, 16)), "cpu"')],
    "the other size is the policy's own": [
        ("policy, AutoModelForCausalLM.from_pretrained(path, **options)", f"policy, {A_COPY}")
    ],
    "clamped to a row that is not there": [("given[0].clamp(max=15)", "given[0].clamp(max=16)")],
    "the clamp is on the policy's copy": [
        (
            "    table = reference.get_input_embeddings()\n",
            f"    reference = {A_COPY}\n    table = reference.get_input_embeddings()\n",
        )
    ],
}
