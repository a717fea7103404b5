"""Chats: messages in, typed events out."""
