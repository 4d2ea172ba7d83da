"""Draft heads: small networks that draft from what the target's own layers have computed."""
