"""Tiny sizes of the transformers of diffusers, and what they are called on."""

from typing import Any

TOKENS = (2, 5, 16)
DIT = {"num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 8}
WAN = {"num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 12}
Sizes = tuple[dict[str, Any], dict[str, Any]]

TRANSFORMERS: dict[str, Sizes] = {
    "Transformer2DModel": (
        DIT | {"in_channels": 8, "norm_num_groups": 4, "cross_attention_dim": 16},
        {"hidden_states": (2, 8, 4, 4), "encoder_hidden_states": TOKENS},
    ),
    "TransformerTemporalModel": (
        DIT | {"in_channels": 8, "norm_num_groups": 4},
        {"hidden_states": (4, 8, 4, 4), "num_frames": 2},
    ),
    "DiTTransformer2DModel": (
        DIT | {"in_channels": 4, "sample_size": 8, "num_embeds_ada_norm": 8},
        {"hidden_states": (2, 4, 8, 8), "timestep": [1, 2], "class_labels": [0, 3]},
    ),
    "PixArtTransformer2DModel": (
        DIT
        | {"in_channels": 4, "sample_size": 8, "cross_attention_dim": 16}
        | {"caption_channels": 16, "use_additional_conditions": False},
        {"hidden_states": (2, 4, 8, 8), "timestep": [1, 2]}
        | {"encoder_hidden_states": TOKENS}
        | {"added_cond_kwargs": {"resolution": None, "aspect_ratio": None}},
    ),
    "SD3Transformer2DModel": (
        DIT
        | {"in_channels": 4, "sample_size": 8, "patch_size": 2, "out_channels": 4}
        | {"joint_attention_dim": 16, "caption_projection_dim": 16}
        | {"pooled_projection_dim": 16, "pos_embed_max_size": 8},
        {"hidden_states": (2, 4, 8, 8), "encoder_hidden_states": TOKENS}
        | {"pooled_projections": (2, 16), "timestep": [1, 2]},
    ),
    "FluxTransformer2DModel": (
        DIT
        | {"in_channels": 4, "num_single_layers": 1, "joint_attention_dim": 16}
        | {"pooled_projection_dim": 16, "axes_dims_rope": (2, 2, 4)},
        {"hidden_states": (2, 16, 4), "encoder_hidden_states": TOKENS}
        | {"pooled_projections": (2, 16), "timestep": (2,), "img_ids": (16, 3)}
        | {"txt_ids": (5, 3)},
    ),
    "AuraFlowTransformer2DModel": (
        {"sample_size": 8, "num_mmdit_layers": 1, "num_single_dit_layers": 1}
        | {"attention_head_dim": 8, "num_attention_heads": 2}
        | {"joint_attention_dim": 16, "caption_projection_dim": 16}
        | {"pos_embed_max_size": 64},
        {"hidden_states": (2, 4, 8, 8), "encoder_hidden_states": TOKENS}
        | {"timestep": (2,)},
    ),
    "SanaTransformer2DModel": (
        DIT
        | {"in_channels": 4, "out_channels": 4, "num_cross_attention_heads": 2}
        | {"cross_attention_head_dim": 8, "cross_attention_dim": 16}
        | {"caption_channels": 16, "sample_size": 8, "patch_size": 1},
        {"hidden_states": (2, 4, 8, 8), "encoder_hidden_states": TOKENS}
        | {"timestep": [1, 2]},
    ),
    "HunyuanDiT2DModel": (
        {"sample_size": 8, "patch_size": 2, "in_channels": 4, "num_layers": 1}
        | {"attention_head_dim": 8, "num_attention_heads": 2}
        | {"cross_attention_dim": 16, "cross_attention_dim_t5": 16}
        | {"pooled_projection_dim": 4, "hidden_size": 16, "text_len": 4}
        | {"text_len_t5": 4},
        {"hidden_states": (2, 4, 8, 8), "timestep": (2,)}
        | {"encoder_hidden_states": (2, 4, 16)}
        | {"text_embedding_mask": [[1, 1, 1, 0], [1, 1, 0, 0]]}
        | {"encoder_hidden_states_t5": (2, 4, 16)}
        | {"text_embedding_mask_t5": [[1, 1, 1, 0], [1, 1, 0, 0]]}
        | {"image_meta_size": [[8, 8, 8, 8, 0, 0]] * 2, "style": [0, 0]}
        | {"image_rotary_emb": None},
    ),
    "PriorTransformer": (
        DIT | {"embedding_dim": 8, "num_embeddings": 5, "additional_embeddings": 4},
        {"hidden_states": (2, 8), "timestep": 3, "proj_embedding": (2, 8)}
        | {"encoder_hidden_states": (2, 5, 8)},
    ),
    "CogVideoXTransformer3DModel": (
        DIT
        | {"in_channels": 4, "out_channels": 4, "time_embed_dim": 4}
        | {"text_embed_dim": 16, "sample_width": 8, "sample_height": 8}
        | {"sample_frames": 8, "max_text_seq_length": 5},
        {"hidden_states": (1, 2, 4, 8, 8), "encoder_hidden_states": (1, 5, 16)}
        | {"timestep": [3]},
    ),
    "LTXVideoTransformer3DModel": (
        DIT
        | {"in_channels": 4, "out_channels": 4, "cross_attention_dim": 16}
        | {"caption_channels": 16},
        {"hidden_states": (2, 32, 4), "encoder_hidden_states": TOKENS}
        | {"timestep": [3, 4], "encoder_attention_mask": [[1, 1, 1, 1, 0]] * 2}
        | {"num_frames": 2, "height": 4, "width": 4},
    ),
    "LatteTransformer3DModel": (
        DIT
        | {"in_channels": 4, "sample_size": 8, "patch_size": 2, "video_length": 1}
        | {"cross_attention_dim": 16, "caption_channels": 16}
        | {"norm_type": "ada_norm_single", "attention_bias": True},
        {"hidden_states": (2, 4, 1, 8, 8), "encoder_hidden_states": TOKENS}
        | {"timestep": [3, 4]},
    ),
    "MochiTransformer3DModel": (
        DIT
        | {"pooled_projection_dim": 16, "in_channels": 4, "text_embed_dim": 16}
        | {"time_embed_dim": 4, "activation_fn": "swiglu", "max_sequence_length": 16},
        {"hidden_states": (2, 4, 2, 8, 8), "encoder_hidden_states": TOKENS}
        | {"timestep": [3, 4], "encoder_attention_mask": [[True] * 4 + [False]] * 2},
    ),
    "WanTransformer3DModel": (
        WAN
        | {"in_channels": 4, "out_channels": 4, "text_dim": 16, "freq_dim": 16}
        | {"ffn_dim": 16, "rope_max_seq_len": 32},
        {"hidden_states": (1, 4, 2, 8, 8), "timestep": [3]}
        | {"encoder_hidden_states": (1, 5, 16)},
    ),
    "StableAudioDiTModel": (
        {"sample_size": 4, "in_channels": 4, "num_layers": 1}
        | {"attention_head_dim": 4, "num_attention_heads": 2}
        | {"num_key_value_attention_heads": 1, "out_channels": 4}
        | {"cross_attention_dim": 4, "time_proj_dim": 4, "global_states_input_dim": 8}
        | {"cross_attention_input_dim": 4},
        {"hidden_states": (2, 4, 4), "timestep": (2,)}
        | {"encoder_hidden_states": (2, 5, 4), "global_hidden_states": (2, 1, 8)}
        | {"rotary_embedding": None},
    ),
    "T2IAdapter": ({"channels": [8, 8], "num_res_blocks": 1}, {"x": (2, 3, 32, 32)}),
}
