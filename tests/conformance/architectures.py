"""Architectures of transformers at tiny sizes, built from configurations alone."""

import copy
import dataclasses
import inspect
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.conformance.architecture_sizes import GIVEN, SIZES

transformers.logging.set_verbosity_error()

HEADS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "MODEL_FOR_CTC_MAPPING",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING",
    "MODEL_MAPPING",
)
"""The first that knows a configuration says which class is built from it."""

NAMES = """
afmoe aimv2 aimv2_vision_model albert altclip apertus arcee aria aria_text
audio-spectrogram-transformer audioflamingo3 audioflamingo3_encoder autoformer axk1 axk2
aya_vision bailing_hybrid bamba bark bart beam beit bert bert-generation big_bird
bigbird_pegasus biogpt bit bitnet blenderbot blenderbot-small blip blip-2 blip_2_qformer
bloom bros camembert canary canine chinese_clip chinese_clip_vision_model clip
clip_text_model clip_vision_model clipseg clvp codegen cohere cohere2 cohere2_moe
cohere2_vision cohere_asr cohere_compass_vision conditional_detr convbert convnext
convnextv2 cosmos3_edge_vision cosmos3_omni cpmant ctrl cwm dab-detr dac data2vec-audio
data2vec-text data2vec-vision dbrx deberta deberta-v2 decision_transformer deepseek_v2
deepseek_v3 deepseek_v32 deepseek_v4 deepseek_vl deformable_detr deit detr diffllama
diffusion_gemma dinov2 dinov2_with_registers dinov3_convnext dinov3_vit distilbert doge
donut-swin dots1 dpr dpt efficientnet electra embedding_gemma2 embedding_gemma2_text
encodec encoder-decoder ernie ernie4_5 ernie4_5_moe esm esmc eurobert exaone4 exaone4_5
exaone4_5_vision exaone_moe falcon falcon_h1 falcon_mamba fastspeech2_conformer
fastspeech2_conformer_with_hifigan flaubert flava flex_olmo flint fnet focalnet fsmt
fun_asr_nano_encoder funnel fuyu gemma gemma2 gemma3 gemma3_text gemma3n_audio gemma4
gemma4_audio gemma4_text gemma4_unified_text gemma4_vision git glm glm4 glm46v glm4_moe
glm4_moe_lite glm4v glm4v_moe glm4v_moe_text glm4v_moe_vision glm4v_text glm4v_vision
glm5_next_vision glm_image glm_image_text glm_image_vision glm_image_vqmodel glm_moe_dsa
glm_ocr glm_ocr_text glm_ocr_vision glmasr glmasr_encoder glmga glpn got_ocr2 gpt-sw3
gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj granite granite_docling
granite_docling_text granite_docling_vision granite_speech granite_speech_plus
granite_swa granitemoe granitemoe_swa granitemoehybrid granitemoeshared grounding-dino
gte helium hiera higgs_audio_v2 hrm_text hubert hunyuan_v1_dense hunyuan_v1_moe
hunyuan_vl_text hy_v3 hy_v4 hyperclovax hyperclovax_vision_v2 ibert idefics idefics2
idefics3 idefics3_vision ijepa imagegpt informer inkling2 inkling2_text inkling2_vision
inkling_text instructblip instructblipvideo internlm3 internvl internvl_vision
iquestcoder jais2 jamba jetmoe jina_embeddings_v3 kimi_k25 kimi_k25_vision kimi_linear
kolibri1 kosmos-2 kosmos-2.5 laguna lasr_ctc lasr_encoder layoutlm layoutlmv3 led levit
lfm2 lfm2_moe lfm2_vl lfm3 lfm3_vl lfm3_vl_vision lightglue lighton_ocr lilt llama
llama4_text llava llava_next llava_next_video llava_onevision longcat_flash longformer
longt5 luke lw_detr lxmert m2m_100 mamba mamba2 marian markuplm mask2former
maskformer-swin mbart megatron-bert mellum metaclip_2 mgp-str mimi_encoder mimo_v2_flash
minicpm3 minicpm_ocr minicpm_ocr_vision minicpmv4_6 minicpmv4_7 minicpmv4_7_vision
minimax minimax_m2 minimax_m3_vl minimax_m3_vl_text ministral ministral3 mistral
mistral3 mistral4 mistral_large4 mistral_large4_text mixtral mlcd mlcd_vision_model
mllama mm-grounding-dino mobilebert mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2
modernbert modernbert-decoder modernvbert molmo2_text moonshine moshi
moss_transcribe_diarize moss_transcribe_diarize_audio mpnet mpt mra mt5
muse_glimmer_assistant muse_glimmer_text muse_glimmer_vision muse_spark_text
muse_spark_vision musicflamingo mvp nanochat nemotron nemotron3_5_asr
nemotron3_5_transcribe_asr_audio nemotron3_diarization_audio nemotron_asr_streaming
nemotron_asr_streaming_encoder nemotron_h nllb-moe nomic_bert nystromformer olmo olmo2
olmo3 olmo_hybrid olmoe oneformer openai-gpt openai_privacy_filter opt ovis2 owlv2
owlvit paddleocr_vl paligemma parakeet_ctc parakeet_encoder parakeet_rnnt parakeet_tdt
patchtsmixer patchtst pe_audio pe_audio_encoder pegasus pegasus_x perceiver persimmon
phi phi3 phimoe pi0 pix2struct pixio pixtral plbart pocket_tts_audio_tokenizer_encoder
poolformer pop2piano pp_chart2table pp_lcnet pp_ocrv5_mobile_det pp_ocrv5_mobile_rec
pp_ocrv6_small_det pp_ocrv6_small_rec pp_ocrv6_tiny_rec prophetnet pvt pvt_v2
qianfan_ocr qianfan_ocr_vision qwen2 qwen2_5_omni_thinker qwen2_5_vl qwen2_5_vl_text
qwen2_5_vl_vision qwen2_audio qwen2_audio_encoder qwen2_moe qwen2_vl qwen2_vl_text qwen3
qwen3_5_moe_text qwen3_5_moe_vision qwen3_5_text qwen3_5_vision qwen3_asr
qwen3_asr_encoder qwen3_moe qwen3_next qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe
qwen3_vl_moe_text qwen3_vl_moe_vision qwen3_vl_text qwen3_vl_vision qwen4_exp_text
qwen4_exp_vision recurrent_gemma reformer regnet rembert resnet rf_detr roberta
roberta-prelayernorm roc_bert roformer rt_detr rt_detr_v2 rwkv sam sam3 sam3_lite_text
sam3_lite_text_text_model sam3_tracker sam3_vision_model sam3_vit_model sam_hq
sam_hq_vision_model sam_vision_model seamless_m4t seamless_m4t_v2 seed_oss segformer
seggpt sew sew-d shieldgemma2 siglip siglip2 siglip2_vision_model siglip_vision_model
smollm3 smolvlm smolvlm_vision solar_open speech-encoder-decoder speech_to_text speecht5
splinter squeezebert stablelm starcoder2 step3p7 swiftformer swin swin2sr swinv2
switch_transformers t5 t5gemma t5gemma2 table-transformer tapas time_series_transformer
timesfm timesfm2_5 timesformer tipsv2 tipsv2_dpt tipsv2_text_model tipsv2_vision_model
trocr udop ultrabert ultravbert umt5 unispeech unispeech-sat vaultgemma video_llama_3
video_llama_3_vision video_llava videomae vilt vipllava vision-encoder-decoder
vision-text-dual-encoder visual_bert vit vit_mae vit_msn vitdet vits vivit voxtral
voxtral_encoder voxtral_realtime voxtral_realtime_encoder wav2vec2 wav2vec2-bert
wav2vec2-conformer wavlm whisper xclip xcodec xglm xlm xlm-roberta xlm-roberta-xl xlnet
xlstm xmod yolos yoso youtu zamba2
"""
ARCHITECTURES = tuple(NAMES.split())
"""Every model type of transformers 5.23 that builds like this, with at most 6 million
parameters. The others want packages such as timm, or sizes that fit each other."""

USUAL_NAMES = """
albert bart beit bert blip bloom clip convnext deberta-v2 deepseek_v3 detr falcon
gemma3_text gpt2 gpt_neox llama llava mamba2 mixtral modernbert mt5 phi3 qwen3_moe
recurrent_gemma resnet roberta swin t5 vit wav2vec2 whisper
"""
USUAL = tuple(USUAL_NAMES.split())
"""Those that are built whenever the tests run."""


def is_known(name: str) -> bool:
    """Whether the installed transformers has a model type."""
    return name in CONFIG_MAPPING


def shrink(config_class: Any, name: str) -> Any:
    """Return a configuration of tiny sizes, also of the parts that it consists of."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):
        size = SIZES.get(field.name)
        has_many = isinstance(field.default, (list, tuple))
        wants_many = has_many or not isinstance(field.default, (int, float))
        if size is not None and (
            wants_many if isinstance(size, list) else not has_many
        ):
            values[field.name] = copy.copy(size)
    if "kv_lora_rank" in values:  # latent attention, where all heads have their keys
        values["num_key_value_heads"] = values["num_attention_heads"]
    values |= copy.deepcopy(GIVEN.get(name, {}))
    for part, declared in config_class.sub_configs.items():
        part_class = declared
        if not dataclasses.is_dataclass(declared):
            part_class = type(getattr(config_class(), part))
        if part not in values and dataclasses.is_dataclass(part_class):
            values[part] = try_to_shrink(part_class)
    return config_class(**{k: v for k, v in values.items() if v is not None})


def try_to_shrink(config_class: Any) -> dict[str, Any] | None:
    """Return a part of a configuration, or None where its sizes do not fit so."""
    try:
        return shrink(config_class, config_class.model_type).to_dict()
    except Exception:
        return None


def make_build(name: str) -> Any:
    """Return a function that builds an architecture."""
    config = shrink(CONFIG_MAPPING[name], name)
    mappings = [getattr(modeling_auto, head) for head in HEADS]
    found = next(m[type(config)] for m in mappings if type(config) in m)
    model_class = found[0] if isinstance(found, tuple) else found
    return lambda: model_class(copy.deepcopy(config))


def find_inputs(model: Any) -> dict[str, Any] | None:
    """Return inputs that a real model runs on, None if none are known."""
    # Those with several main inputs are left out: none of them is simple.
    main = {model.main_input_name} if isinstance(model.main_input_name, str) else set()
    for side in (None, 64):
        inputs = make_inputs(model, main, side)
        for names in ((main | {"use_cache"}) & inputs.keys(), inputs.keys()):
            chosen = {name: inputs[name] for name in sorted(names)}
            try:
                model(**chosen)
            except Exception:
                continue
            return chosen
    return None


def make_inputs(model: Any, main: set[str], side: int | None) -> dict[str, Any]:
    """Return random inputs of the names that a model takes.

    Args:
        model: The model.
        main: What it must be given.
        side: Height and width of images; None for what its configuration says.
    """
    config = model.config
    configs = [config, *(getattr(config, part) for part in config.sub_configs)]

    def size(field: str, default: int) -> int:
        found = [getattr(part, field, None) for part in configs]
        return next((n for n in found if isinstance(n, int)), default)

    torch.manual_seed(0)
    side = side or size("image_size", 64)
    frames = 2 * size("max_source_positions", 32)
    tokens = torch.randint(3, 90, (2, 8))
    usual: dict[str, Any] = {
        "pixel_values": torch.randn(2, size("num_channels", 3), side, side),
        "input_features": torch.randn(2, size("num_mel_bins", 80), frames),
        "input_values": torch.randn(2, 4000),
        "input_ids": tokens,
    }
    if config.is_encoder_decoder:
        usual["decoder_input_ids"] = tokens
    usual["use_cache"] = False
    taken = inspect.signature(model.forward).parameters
    optional = {"input_ids", "decoder_input_ids", "pixel_values", "use_cache"}
    return {
        name: usual.get(name, tokens)
        for name in main | (optional & usual.keys() & taken.keys())
    }
