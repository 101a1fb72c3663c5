"""Tiny sizes for the configurations of transformers."""

from typing import Any

NAMES_BY_SIZE = {
    0: "pad_token_id",
    1: "n_group topk_group first_k_dense_replace bos_token_id",
    2: """
        num_hidden_layers num_key_value_heads num_experts_per_tok
        type_vocab_size encoder_layers decoder_layers depth num_layers
        num_decoder_layers n_layer num_conv_pos_embedding_groups n_layers
        decoder_num_hidden_layers num_encoder_layers linear_num_key_heads
        speech_encoder_layers index_n_heads layers eos_token_id
    """,
    4: """
        num_attention_heads rotary_dim patch_size encoder_attention_heads
        decoder_attention_heads num_heads num_experts n_routed_experts
        num_local_experts n_head moe_num_experts n_heads
        decoder_num_attention_heads encoder_num_attention_heads
        linear_num_value_heads speech_encoder_attention_heads mamba_num_heads
        index_topk num_filters attention_heads
    """,
    5: "num_queries",
    8: """
        head_dim v_head_dim kv_lora_rank q_lora_rank qk_rope_head_dim
        qk_nope_head_dim d_kv state_size codebook_dim linear_key_head_dim
        linear_value_head_dim mamba_n_heads mamba_d_head mamba_d_state
        mamba_head_dim ssm_state_size fusion_hidden_size index_head_dim dim_head
        d_head stem_channels hidden_size_per_layer_input query_pre_attn_scalar
    """,
    16: """
        image_size moe_intermediate_size projection_dim num_mel_bins embed_dim
        num_conv_pos_embeddings classifier_proj_size
        shared_expert_intermediate_size upsample_initial_channel feature_size
        num_position_embeddings
    """,
    32: """
        hidden_size d_model out_hidden_size n_embd embedding_size
        decoder_hidden_size emb_dim hidden_dim encoder_hidden_size codebook_size
        max_source_positions max_target_positions text_hidden_size
        encoder_hidden_dim lru_width audio_vocab_size
    """,
    40: """
        intermediate_size encoder_ffn_dim decoder_ffn_dim mlp_dim ffn_dim d_ff
        dim_feedforward speech_encoder_intermediate_size d_inner
    """,
    64: "max_position_embeddings n_positions",
    99: "vocab_size vocab_size_per_layer_input",
}
SIZES: dict[str, Any] = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 16, 24, 32],
    "conv_dim": [8, 8, 8, 8, 8, 8, 8],
    "neck_hidden_sizes": [8, 8, 8, 8],
    **{name: size for size, names in NAMES_BY_SIZE.items() for name in names.split()},
}
"""Small values for the fields of all configurations that have them."""

RESNET = {
    "model_type": "resnet",
    "hidden_sizes": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1],
    "embedding_size": 8,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
WITHOUT_TIMM = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": RESNET,
}
SWIN = {
    "depths": [1, 1],
    "num_heads": [2, 2],
    "embed_dim": 16,
    "window_size": 4,
    "image_size": 32,
    "patch_size": 4,
}
SEW = {"conv_dim": [8] * 13}
PYRAMID = {"num_attention_heads": [1, 2, 4, 4], "hidden_sizes": [8, 16, 32, 32]}
FORECAST = {"prediction_length": 4}

GIVEN: dict[str, dict[str, Any]] = {
    "autoformer": FORECAST,
    "bit": {"num_groups": 4},
    "conditional_detr": WITHOUT_TIMM,
    "dab-detr": WITHOUT_TIMM,
    "dac": {
        "encoder_hidden_size": 8,
        "downsampling_ratios": [2, 2],
        "upsampling_ratios": [2, 2],
        "decoder_hidden_size": 32,
    },
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deformable_detr": WITHOUT_TIMM,
    "detr": WITHOUT_TIMM,
    "distilbert": {"dim": 32, "hidden_dim": 40, "n_heads": 4},
    "donut-swin": SWIN,
    "dots1": {"first_k_dense_replace": 1, "n_shared_experts": 1},
    "efficientnet": {
        "width_coefficient": 0.1,
        "depth_coefficient": 0.1,
        "hidden_dim": 64,
    },
    "esmc": {"num_key_value_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
    "fsmt": {"src_vocab_size": 99, "tgt_vocab_size": 99},
    "glpn": PYRAMID,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "informer": FORECAST,
    "levit": {
        "hidden_sizes": [16, 16, 16],
        "num_attention_heads": [2, 2, 2],
        "key_dim": [8, 8, 8],
        "depths": [1, 1, 1],
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {
        "ffn_hidden_size": 40,
        "expert_ffn_hidden_size": 16,
        "zero_expert_num": 2,
        "moe_topk": 2,
    },
    "luke": {"entity_vocab_size": 50, "entity_emb_size": 8},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1},
    "mask2former": {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32},
    "maskformer-swin": SWIN,
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilevit": {
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
    },
    "mobilevitv2": {"width_multiplier": 0.25},
    "perceiver": {
        "num_latents": 8,
        "d_latents": 32,
        "d_model": 32,
        "num_self_attends_per_block": 1,
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 4,
    },
    "pvt": PYRAMID,
    "pvt_v2": PYRAMID,
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds_dim": [16, 16],
        "axial_pos_shape": [8, 8],
        "attention_head_size": 8,
        "feed_forward_size": 40,
        "attn_layers": ["local", "lsh"],
    },
    "roc_bert": {
        "shape_vocab_size": 50,
        "shape_embed_dim": 8,
        "pronunciation_vocab_size": 20,
        "pronunciation_embed_dim": 8,
    },
    "sew": SEW,
    "sew-d": SEW,
    "swin": SWIN,
    "swin2sr": SWIN,
    "swinv2": SWIN,
    "table-transformer": WITHOUT_TIMM,
    "time_series_transformer": FORECAST,
    "zamba2": {"layer_types": ["mamba", "hybrid"]},
}
"""Sizes that must fit each other otherwise, by the model's type."""
