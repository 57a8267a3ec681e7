"""What the reference runs were: a model, a corpus, settings and a few sentences."""

BASE_PARAMETERS = 60_880_896
WMT_MANIFEST = {
    "pairs": {"raw": 4_548_885, "prepared": 4_386_174},
    "filters": {
        "invalid_utf8": 0,
        "empty_side": 7_214,
        "control_characters": 318,
        "too_many_words": 41_902,
        "length_ratio": 2_655,
        "identical_sides": 0,
        "duplicate": 92_387,
        "too_many_tokens": 18_235,
    },
    "bytes": {
        "source": {"raw": 594_236_113, "cleaned": 566_120_401, "prepared": 297_336_800},
        "target": {"raw": 672_391_220, "cleaned": 640_287_336, "prepared": 311_004_922},
    },
    "tokens": {"source": 126_334_801, "target": 131_668_210},
    "languages": {"source": "en", "target": "de"},
    "vocabulary": {"sizes": [32_768]},
}
WMT_SETTINGS = """\
[corpus]
folder = "/data/wmt16"
source_language = "en"
target_language = "de"

[model]
preset = "base"
dropout = 0.1

[batches]
tokens_per_step = 32768
row_tokens = 128
rows_per_device = 128

[optimizer]
beta1 = 0.9
beta2 = 0.98

[schedule]
kind = "transformer"
scale = 2.0
warmup_steps = 8000

[training]
steps = 50000
precision = "float16"
label_smoothing = 0.1

[evaluation]
every_steps = 1000

[checkpoints]
every_steps = 2000
"""
SENTENCES = [
    ("The session is resumed.", "Die Sitzung wird wieder aufgenommen."),
    ("That was on 3 May at half past nine.", "Das war am 3. Mai um halb zehn."),
    ("A <script>alert('x')</script> & more in one line.", "Ein <b>Skript</b> & mehr."),
]
