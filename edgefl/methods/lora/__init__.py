"""Ways to train LoRA's factors together: ffa-lora, rolora, fedex-lora, flora."""
