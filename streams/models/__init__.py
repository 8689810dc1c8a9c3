"""Questions to language models, each paid for once: any OpenAI-compatible server, answers held to
a pydantic model, kept by the ledger, counted by the hop.

    class Verdict(BaseModel):
        label: Label

    judge = Model("HANDOFF_MODEL_")  # HANDOFF_MODEL_NAME, HANDOFF_MODEL_URL …


    @stage("classify", emits="enrich", prepare=judge.load)
    async def classify(mail: Mail, job: Context) -> ClassifiedMail:
        verdict = await judge.ask(job, "label", mail.body[:4000], Verdict, instructions="…")

Needs `pip install 'handoff[model]'`; what is not asked for is not imported.
"""

from streams.models.answer import Answer
from streams.models.blame import BadAnswer, ModelAway
from streams.models.model import Model
from streams.models.settings import ModelSettings, is_named, model_settings

__all__ = [
    "Answer",
    "BadAnswer",
    "Model",
    "ModelAway",
    "ModelSettings",
    "is_named",
    "model_settings",
]
