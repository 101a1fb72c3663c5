"""Models of speech and music."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
from torch import nn

from tests.conformance.libraries.cases import Case, list_cases, on

WAVE = on((2, 800))
FRAMES = on((2, 20, 8))


def list_asteroid() -> Iterator[Case]:
    """Yield models that take voices apart."""
    masks = {"n_src": 2, "n_filters": 16, "kernel_size": 16, "n_repeats": 1}
    blocks = {"n_blocks": 2, "bn_chan": 8, "hid_chan": 8, "skip_chan": 8}
    dprnn = masks | {"bn_chan": 8, "hid_size": 8, "chunk_size": 10}
    models = {
        "models.ConvTasNet": masks | blocks,
        "models.DPRNNTasNet": dprnn,
        "models.DPTNet": masks | {"n_heads": 2, "ff_hid": 8, "chunk_size": 10},
        "models.LSTMTasNet": {
            "n_src": 2,
            "n_filters": 16,
            "hid_size": 8,
            "kernel_size": 16,
        },
        "models.SuDORMRFNet": {
            "n_src": 2,
            "n_filters": 16,
            "bn_chan": 8,
            "num_blocks": 1,
        }
        | {"mask_act": "relu"},
        "models.DeMask": {"hidden_dims": (16,), "stft_n_filters": 64},
    }
    yield from list_cases("asteroid", models, WAVE)


def list_encodec() -> Iterator[Case]:
    """Yield a codec of music, and a judge of its spectra."""

    def build() -> nn.Module:
        encodec = import_module("encodec")
        modules = encodec.modules
        sizes = {"channels": 1, "dimension": 8, "n_filters": 4, "lstm": 1}
        sizes |= {"ratios": [2, 2], "norm": "weight_norm", "causal": True}
        quantizer = encodec.quantization.ResidualVectorQuantizer(
            dimension=8, n_q=2, bins=8
        )
        return encodec.EncodecModel(
            modules.SEANetEncoder(**sizes),
            modules.SEANetDecoder(**sizes),
            quantizer,
            [1.5],
            24000,
            1,
        )

    models = {
        "EncodecModel": build,
        "msstftd.MultiScaleSTFTDiscriminator": {
            "filters": 2,
            "n_ffts": [64],
            "hop_lengths": [16],
            "win_lengths": [64],
        },
    }
    yield from list_cases("encodec", models, on((2, 1, 400)))


ECAPA = {"input_size": 8, "channels": [8, 8, 8, 8, 24], "attention_channels": 8}
ECAPA |= {"lin_neurons": 8, "res2net_scale": 2, "se_channels": 8}
CRDNN = {"input_size": 8, "cnn_blocks": 1, "cnn_channels": (4,), "rnn_layers": 1}
CRDNN |= {"rnn_neurons": 8, "dnn_blocks": 1, "dnn_neurons": 8, "time_pooling": True}
LOBES = "lobes.models"


def on_lengths(module: nn.Module) -> Any:
    """Call a model on two utterances of other lengths."""
    return module(torch.rand(2, 20, 8), torch.tensor([1.0, 0.5]))


def on_tokens(module: nn.Module) -> Any:
    """Call a model on two sentences."""
    return module(torch.randint(1, 10, (2, 8)))


def transcribe(module: nn.Module) -> Any:
    """Call a model on two utterances and what was said."""
    return module(torch.rand(2, 20, 8), torch.randint(1, 10, (2, 6)))


SPEECH = {"input_size": 8, "tgt_vocab": 10, "d_model": 8, "nhead": 2, "d_ffn": 16}
SPEECH |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
CONFORMER = {"encoder_module": "conformer", "attention_type": "RelPosMHAXL"}
CONFORMER |= {"kernel_size": 7, "normalize_before": True}
ASR = f"{LOBES}.transformer.TransformerASR.TransformerASR"
SPEECH_MODELS: dict[str, Any] = {
    f"{LOBES}.ECAPA_TDNN.ECAPA_TDNN": (ECAPA, on_lengths),
    f"{LOBES}.Xvector.Xvector": {
        "in_channels": 8,
        "lin_neurons": 8,
        "tdnn_channels": [8, 8, 8, 8, 8],
    },
    f"{LOBES}.CRDNN.CRDNN": CRDNN,
    f"{LOBES}.RNNLM.RNNLM": (
        {"output_neurons": 10, "embedding_dim": 8, "rnn_neurons": 8},
        on_tokens,
    ),
    f"{LOBES}.convolution.ConvolutionFrontEnd": {
        "input_shape": (2, 20, 8),
        "num_blocks": 1,
        "out_channels": [4],
    }
    | {"kernel_sizes": [3], "strides": [2], "residuals": [False]},
    f"{LOBES}.dual_path.Encoder": ({"kernel_size": 4, "out_channels": 8}, WAVE),
    ASR: (SPEECH, transcribe),
    f"{ASR}, conformer": (SPEECH | CONFORMER, transcribe),
    "nnet.RNN.LiGRU": {"hidden_size": 8, "input_shape": (2, 20, 8)},
    "nnet.RNN.QuasiRNN": {"hidden_size": 8, "input_shape": (2, 20, 8)},
    "nnet.CNN.SincConv": (
        {"in_channels": 1, "out_channels": 4, "kernel_size": 11},
        WAVE,
    ),
    "nnet.quaternion_networks.q_linear.QLinear": {
        "n_neurons": 4,
        "input_shape": (2, 20, 8),
    },
    "nnet.complex_networks.c_RNN.CLSTM": {"hidden_size": 4, "input_shape": (2, 20, 8)},
    "lobes.features.Fbank": ({"n_mels": 8, "requires_grad": True}, WAVE),
}


def list_speechbrain() -> Iterator[Case]:
    """Yield models of its lobes and layers."""
    yield from list_cases("speechbrain", SPEECH_MODELS, FRAMES)


def with_lengths(*shape: int) -> Callable[[nn.Module], Any]:
    """Return what calls a model on two sequences of other lengths."""
    lengths = torch.tensor([shape[1], shape[1] - 4])
    return lambda module: module(torch.rand(shape), lengths.clone())


def speak(module: nn.Module) -> Any:
    """Call a model on two sentences and their spectra."""
    return module(
        torch.randint(0, 9, (2, 6)),
        torch.tensor([6, 4]),
        torch.rand(2, 4, 8),
        torch.tensor([8, 6]),
    )


OF_CONFORMER = {"input_dim": 8, "num_heads": 2, "ffn_dim": 16, "num_layers": 2}
EMFORMER = OF_CONFORMER | {"segment_length": 4, "right_context_length": 1}
SEPARATING = {"enc_kernel_size": 16, "enc_num_feats": 8, "msk_num_feats": 8}
SEPARATING |= {"msk_num_hidden_feats": 8, "msk_num_layers": 2, "msk_num_stacks": 1}
TACOTRON = {"n_mels": 4, "n_symbol": 9, "symbol_embedding_dim": 8}
TACOTRON |= {"encoder_embedding_dim": 8, "encoder_n_convolution": 1}
TACOTRON |= {"decoder_rnn_dim": 8, "attention_rnn_dim": 8, "prenet_dim": 8}
TACOTRON |= {"postnet_n_convolution": 2, "postnet_embedding_dim": 8}
OF_WAVE = {"upsample_scales": [2, 2], "n_classes": 8, "hop_length": 4, "n_freq": 8}
OF_WAVE |= {"n_res_block": 1, "n_rnn": 8, "n_fc": 8, "n_hidden": 8, "n_output": 8}
AUDIO_MODELS: dict[str, Any] = {
    "models.Conformer": (
        OF_CONFORMER | {"depthwise_conv_kernel_size": 7},
        with_lengths(2, 20, 8),
    ),
    "models.Emformer": (EMFORMER, with_lengths(2, 21, 8)),
    "models.ConvTasNet": (SEPARATING, on((2, 1, 400))),
    "models.DeepSpeech": ({"n_feature": 8, "n_hidden": 8}, on((2, 1, 20, 8))),
    "models.Wav2Letter": ({"num_classes": 8, "num_features": 8}, on((2, 8, 400))),
    "models.Tacotron2": (TACOTRON, speak),
    "models.WaveRNN": (OF_WAVE, on((1, 1, 16), (1, 1, 8, 8))),
    "models.HDemucs": (
        {"sources": ["a", "b"], "channels": 4, "depth": 2, "nfft": 64}
        | {"freq_emb": 0, "dconv_attn": 4, "dconv_lstm": 4, "norm_starts": 1},
        on((1, 2, 2048)),
    ),
}


def list_torchaudio() -> Iterator[Case]:
    """Yield its models, at small sizes."""
    yield from list_cases("torchaudio", AUDIO_MODELS)
