"""Tiny sizes of the other models of diffusers, and what they are called on."""

from tests.conformance.libraries.diffusion_transformers import (
    TOKENS,
    TRANSFORMERS,
    Sizes,
)

IMAGE = {"sample": (2, 3, 16, 16)}
LATENT = {"sample": (2, 4, 8, 8), "timestep": [10, 20]}
TWO = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
CODER = {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
CROSS = TWO | {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 16,
    "attention_head_dim": 2,
}
VIDEO = TWO | {"cross_attention_dim": 16}

UNETS: dict[str, Sizes] = {
    "UNet2DModel": (
        TWO
        | {"sample_size": 8, "down_block_types": ("DownBlock2D", "AttnDownBlock2D")}
        | {"up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
        {"sample": (2, 3, 8, 8), "timestep": [10, 20]},
    ),
    "UNet2DModel, fourier": (
        {"block_out_channels": (32, 64), "layers_per_block": 1}
        | {"time_embedding_type": "fourier"}
        | {"down_block_types": ("SkipDownBlock2D", "AttnSkipDownBlock2D")}
        | {"up_block_types": ("AttnSkipUpBlock2D", "SkipUpBlock2D")},
        {"sample": (2, 3, 8, 8), "timestep": [10, 20]},
    ),
    "UNet2DConditionModel": (CROSS, LATENT | {"encoder_hidden_states": TOKENS}),
    "UNet2DConditionModel, classes": (
        CROSS | {"num_class_embeds": 3},
        LATENT | {"encoder_hidden_states": TOKENS, "class_labels": [0, 2]},
    ),
    "UNet1DModel": (
        {"in_channels": 8, "out_channels": 8, "block_out_channels": (8, 16, 16, 16)}
        | {"time_embedding_type": "positional", "use_timestep_embedding": True}
        | {"down_block_types": ("DownResnetBlock1D",) * 4}
        | {"up_block_types": ("UpResnetBlock1D",) * 3}
        | {"mid_block_type": "MidResTemporalBlock1D"}
        | {"out_block_type": "OutConv1DBlock", "act_fn": "swish"},
        {"sample": (2, 8, 16), "timestep": [10, 20]},
    ),
    "UNet3DConditionModel": (
        VIDEO
        | {"attention_head_dim": 4}
        | {"down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D")}
        | {"up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")},
        {"sample": (1, 4, 2, 8, 8), "timestep": 3, "encoder_hidden_states": (1, 5, 16)},
    ),
    "UNetSpatioTemporalConditionModel": (
        {
            "block_out_channels": (32, 64),
            "layers_per_block": 1,
            "num_attention_heads": (2, 4),
            "cross_attention_dim": 16,
            "addition_time_embed_dim": 32,
            "projection_class_embeddings_input_dim": 96,
            "down_block_types": (
                "CrossAttnDownBlockSpatioTemporal",
                "DownBlockSpatioTemporal",
            ),
            "up_block_types": (
                "UpBlockSpatioTemporal",
                "CrossAttnUpBlockSpatioTemporal",
            ),
        },
        {"sample": (1, 2, 8, 8, 8), "timestep": 3}
        | {"encoder_hidden_states": (1, 1, 16), "added_time_ids": (1, 3)},
    ),
    "UNetMotionModel": (
        VIDEO
        | {"down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion")}
        | {"up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion")}
        | {"block_out_channels": (16, 32), "norm_num_groups": 16}
        | {"num_attention_heads": 2},
        {"sample": (1, 4, 2, 8, 8), "timestep": 3, "encoder_hidden_states": (2, 5, 16)},
    ),
    "ControlNetModel": (
        {k: v for k, v in CROSS.items() if k != "up_block_types"}
        | {"conditioning_embedding_out_channels": (8, 8)},
        LATENT | {"encoder_hidden_states": TOKENS, "controlnet_cond": (2, 3, 16, 16)},
    ),
    "Kandinsky3UNet": (
        {"in_channels": 4, "time_embedding_dim": 4, "groups": 2}
        | {"attention_head_dim": 4, "layers_per_block": 2}
        | {"block_out_channels": (8, 16), "cross_attention_dim": 8}
        | {"encoder_hid_dim": 16},
        LATENT
        | {"encoder_hidden_states": TOKENS, "encoder_attention_mask": [[1] * 5] * 2},
    ),
    "UVit2DModel": (
        {"hidden_size": 16, "cond_embed_dim": 8, "micro_cond_encode_dim": 2}
        | {"micro_cond_embed_dim": 10, "encoder_hidden_size": 16, "vocab_size": 12}
        | {"codebook_size": 10, "in_channels": 16, "block_out_channels": 16}
        | {"num_res_blocks": 1, "downsample": True, "upsample": True}
        | {"block_num_heads": 2, "num_hidden_layers": 1, "num_attention_heads": 2}
        | {"intermediate_size": 16},
        {"input_ids": [[[1, 2, 3, 4]] * 4] * 2, "encoder_hidden_states": (2, 5, 16)}
        | {"pooled_text_emb": (2, 8), "micro_conds": (2, 5)},
    ),
}
AUTOENCODERS: dict[str, Sizes] = {
    "AutoencoderKL": (TWO | CODER, IMAGE),
    "AutoencoderKL, sampled": (TWO | CODER, IMAGE | {"sample_posterior": True}),
    "AsymmetricAutoencoderKL": (
        {"down_block_types": ("DownEncoderBlock2D",) * 2}
        | {"down_block_out_channels": (8, 16)}
        | {"up_block_types": ("UpDecoderBlock2D",) * 2}
        | {"up_block_out_channels": (8, 16), "norm_num_groups": 4},
        IMAGE,
    ),
    "AutoencoderTiny": (
        {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8)}
        | {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)},
        IMAGE,
    ),
    "AutoencoderKLTemporalDecoder": (
        {"block_out_channels": (32, 64)}
        | {"down_block_types": ("DownEncoderBlock2D",) * 2, "layers_per_block": 1},
        IMAGE | {"num_frames": 2},
    ),
    "AutoencoderDC": (
        {"latent_channels": 4, "attention_head_dim": 2}
        | {"encoder_block_types": ("ResBlock", "EfficientViTBlock")}
        | {"decoder_block_types": ("ResBlock", "EfficientViTBlock")}
        | {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8)}
        | {"encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1)}
        | {"encoder_qkv_multiscales": ((), (5,))}
        | {"decoder_qkv_multiscales": ((), (5,))},
        IMAGE,
    ),
    "VQModel": (TWO | CODER | {"num_vq_embeddings": 8, "latent_channels": 3}, IMAGE),
    "AutoencoderKLCogVideoX": (
        {"down_block_types": ("CogVideoXDownBlock3D",) * 4}
        | {"up_block_types": ("CogVideoXUpBlock3D",) * 4}
        | {"block_out_channels": (8, 8, 8, 8), "latent_channels": 4}
        | {"layers_per_block": 1, "norm_num_groups": 2}
        | {"temporal_compression_ratio": 4},
        {"sample": (1, 3, 9, 16, 16)},
    ),
    "AutoencoderKLWan": (
        {"base_dim": 3, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1},
        {"sample": (1, 3, 9, 16, 16)},
    ),
    "AutoencoderKLLTXVideo": (
        {"latent_channels": 8, "block_out_channels": (8, 8, 8, 8)}
        | {"decoder_block_out_channels": (8, 8, 8, 8)}
        | {"layers_per_block": (1, 1, 1, 1, 1)}
        | {"decoder_layers_per_block": (1, 1, 1, 1, 1)},
        {"sample": (1, 3, 9, 32, 32)},
    ),
    "AutoencoderOobleck": (
        {"encoder_hidden_size": 12, "decoder_channels": 12}
        | {"decoder_input_channels": 6, "audio_channels": 2}
        | {"downsampling_ratios": [2, 4], "channel_multiples": [1, 2]},
        {"sample": (2, 2, 64)},
    ),
}
MODELS = UNETS | AUTOENCODERS | TRANSFORMERS
