"""Message passing over trees and acyclic graphs: specs, programs for the bridge, the oracle."""
