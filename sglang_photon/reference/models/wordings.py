"""How the questions of ``pictures`` are worded."""

from __future__ import annotations

WORDINGS: dict[str, tuple[str, ...]] = {
    "describe": (
        "Describe the picture.",
        "Describe this image.",
        "What do you see?",
        "What is in the picture?",
        "What is in this image?",
        "What's in the image?",
        "What does the picture show?",
        "Tell me what you see in this picture.",
        "Describe the picture in one sentence.",
        "Which shapes do you see?",
        "List the shapes.",
    ),
    "colour": (
        "What colour is {it}?",
        "What color is {it}?",
        "Which colour does {it} have?",
        "Name the colour of {it}.",
        "Tell me the color of {it}.",
    ),
    "shape": (
        "What shape is {it}?",
        "Which shape is {it}?",
        "Name the shape of {it}.",
        "What kind of shape is {it}?",
    ),
    "count": (
        "How many {things} are there?",
        "How many {things} do you see?",
        "How many {things} are in the picture?",
        "Count the {things}.",
        "What is the number of {things}?",
    ),
    "where": (
        "Where is the {name}?",
        "Where is the {name} in the picture?",
        "In which corner is the {name}?",
        "In which part of the picture is the {name}?",
        "Where do you see the {name}?",
    ),
    "point": (
        "Point at the {name}.",
        "Point to the {name}.",
        "Give the point of the {name} as JSON.",
        "Give me a point on the {name}.",
        "Locate the {name} as a point in JSON.",
        "At which x and y is the {name}?",
        "Where is the {name}? Answer with x and y as JSON.",
    ),
    "box": (
        "Give the box of the {name} as JSON.",
        "Give the bounding box of the {name}.",
        "Draw a box around the {name}.",
        "What is the bounding box of the {name}?",
        "Locate the {name} as a box in JSON.",
        "Return the box around the {name}.",
    ),
    "exists": (
        "Is there a {name}?",
        "Do you see a {name}?",
        "Does the picture show a {name}?",
        "Is a {name} in the picture?",
    ),
    "pair describe": (
        "Describe both pictures.",
        "Describe the two pictures.",
        "Describe these images.",
        "What is in these pictures?",
        "What do you see in the two images?",
        "What do the pictures show?",
    ),
}
"""Per task. Blanks: ``{it}`` one shape, ``{name}`` its colour and shape, ``{things}`` a plural."""
