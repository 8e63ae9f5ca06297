"""The operator: LLMServing → engines and a gateway that stay right under every edit, fault and upgrade."""
