"""The parser's additions to LightningCLI."""

import time

from fedvlp.commands.lightning_cli import ParsingCLI
from fedvlp.commands.trained_config import config_option


def seconds_to_parse(count):
    names = [f"class {number}" for number in range(count)]
    data = {"class_path": "fedvlp.data.without_images.PlaceholderData", "init_args": {"classes": names}}
    begin = time.process_time()
    arguments = ["--model=PromptFL", config_option({"data": data})]
    command = ParsingCLI(run=False, args=arguments, save_config_callback=None)
    assert command.config.data.init_args.classes == names
    return time.process_time() - begin


def test_parsing_time_is_not_quadratic_in_the_number_of_classes():
    seconds_to_parse(1)  # imports
    assert seconds_to_parse(1500) < 12 * seconds_to_parse(15)


def parsed(*words):
    arguments = ["--data=IconDomains", "--data.held_out=photo", *words]
    return ParsingCLI(run=False, args=arguments, save_config_callback=None).config.as_dict()


def test_files_and_folders_do_not_shadow_names(tmp_path, monkeypatch):
    words = ["--config=promptfl", "--model.optimizer=SGD", "--trainer.local.add_ons=[FedProx]", "--data=IconDomains"]
    words += ["--model.clip.name=fedvlp-tiny", "--model.clip.pretrained=auto", "--trainer.local.schedule=CosineDecay"]
    expected = parsed(*words)
    monkeypatch.chdir(tmp_path)
    for index, name in enumerate(("promptfl", "SGD", "FedProx", "IconDomains", "auto", "CosineDecay", "photo")):
        if index % 2:
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_text("lr: 3")
    assert parsed(*words) == expected
