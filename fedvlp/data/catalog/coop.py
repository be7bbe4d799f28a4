"""The data sets of CoOp's study but ImageNet: objects, animals, plants, dishes, textures, scenes, land, actions."""

from __future__ import annotations

from fedvlp.data.catalog.forms import ClassFolders, Form, ImageLists, TorchvisionFolder
from fedvlp.data.catalog.one_domain import THREE_SPLITS, TWO_SPLITS, coop, describe, listed, torchvision

CALTECH_101 = describe(
    "Caltech101",
    "caltech101",
    8_242,
    'CaltechDATA, "Learning Generative Visual Models from Few Training Examples" (CVPR Workshop 2004)',
    "CC BY 4.0",
    coop("Caltech101", "Caltech101", "101_ObjectCategories", (4_128, 1_649, 2_465)),
    # torchvision's class gives no paths, and counts Faces_easy, which shows the faces of Faces once more, cut out.
    Form(
        of="torchvision",
        layout="101_ObjectCategories/<class>/…",
        parts=(ClassFolders("101_ObjectCategories", ignored=("BACKGROUND_Google", "Faces_easy")),),
    ),
)
OXFORD_PETS = describe(
    "OxfordPets",
    "oxford_pets",
    7_349,
    'the Visual Geometry Group in Oxford, "Cats and Dogs" (CVPR 2012)',
    "CC BY-SA 4.0",
    coop("OxfordPets", "OxfordPets", "images", (2_944, 736, 3_669)),
    # torchvision's class opens each image before it says where it lies, so its lists are read here.
    listed(
        "OxfordPets",
        "torchvision",
        "images/…, annotations/{trainval,test}.txt",
        ImageLists(
            files={"annotations/trainval.txt": "train", "annotations/test.txt": "test"},
            line=r"(?P<image>(?P<class>.+)_\d+) \d+ \d+ \d+",
            image="images/{image}.jpg",
        ),
        {"train": 3_680, "test": 3_669},
        title="trainval/test",
    ),
)
STANFORD_CARS = describe(
    "StanfordCars",
    "stanford_cars",
    16_185,
    'the Stanford AI Lab, "3D Object Representations for Fine-Grained Categorization" (3dRR 2013)',
    "none stated; for research",
    coop("StanfordCars", "StanfordCars", ".", (6_509, 1_635, 8_041)),
    torchvision(
        "StanfordCars",
        TorchvisionFolder(
            "StanfordCars",
            "stanford_cars",
            ("devkit", "cars_train", "cars_test", "cars_test_annos_withlabels.mat"),
            TWO_SPLITS,
        ),
        {"train": 8_144, "test": 8_041},
    ),
)
FLOWERS_102 = describe(
    "Flowers102",
    "flowers102",
    8_189,
    'the Visual Geometry Group in Oxford, "Automated Flower Classification" (ICVGIP 2008)',
    "none stated; for research",
    coop("Flowers102", "OxfordFlowers", "jpg", (4_093, 1_633, 2_463)),
    torchvision(
        "Flowers102",
        TorchvisionFolder("Flowers102", "flowers-102", ("jpg", "imagelabels.mat", "setid.mat"), THREE_SPLITS),
        {"train": 1_020, "validation": 1_020, "test": 6_149},
    ),
)
FOOD_101 = describe(
    "Food101",
    "food101",
    101_000,
    'the Computer Vision Lab of ETH Zurich, "Food-101" (ECCV 2014)',
    "images of Foodspotting's users; beyond scientific fair use their consent is needed",
    coop("Food101", "Food101", "images", (50_500, 20_200, 30_300)),
    torchvision(
        "Food101",
        TorchvisionFolder("Food101", "food-101", ("images", "meta"), TWO_SPLITS),
        {"train": 75_750, "test": 25_250},
    ),
)
FGVC_AIRCRAFT = describe(
    "FGVCAircraft",
    "fgvc_aircraft",
    10_000,
    'the Visual Geometry Group in Oxford, "Fine-Grained Visual Classification of Aircraft" (2013)',
    "non-commercial research",
    # CoOp's folder is torchvision's under another name, which torchvision's class can't be told.
    listed(
        "FGVCAircraft",
        "CoOp and torchvision",
        "images/…, images_variant_{train,val,test}.txt",
        ImageLists(
            files={f"images_variant_{split}.txt": role for split, role in THREE_SPLITS.items()},
            line=r"(?P<image>\S+) (?P<class>.+)",
            image="images/{image}.jpg",
        ),
        {"train": 3_334, "validation": 3_333, "test": 3_333},
    ),
)
SUN_397 = describe(
    "SUN397",
    "sun397",
    108_754,
    'Princeton and Brown University, "SUN Database" (CVPR 2010)',
    "none stated; for research",
    coop("SUN397", "SUN397", "SUN397", (15_880, 3_970, 19_850), total=39_700),
    Form(
        of="CoOp without its split",
        layout="{Training,Testing}_01.txt, SUN397/…",
        parts=(
            ImageLists(
                files={"Training_01.txt": "train", "Testing_01.txt": "test"},
                line=r"(?P<image>/./(?P<class>.+)/[^/]+)",
                image="SUN397{image}",
            ),
        ),
        title="partition 1 train/test",
        domain_counts={"SUN397": 39_700},
        split_counts={"SUN397": {"train": 19_850, "test": 19_850}},
    ),
    torchvision("SUN397", TorchvisionFolder("SUN397", "SUN397", ("ClassName.txt", "a"))),
)
DTD = describe(
    "DTD",
    "dtd",
    5_640,
    'the Visual Geometry Group in Oxford, "Describing Textures in the Wild" (CVPR 2014)',
    "for research",
    coop("DTD", "DescribableTextures", "images", (2_820, 1_128, 1_692)),
    torchvision(
        "DTD",
        TorchvisionFolder("DTD", "dtd/dtd", ("images", "labels"), THREE_SPLITS),
        {"train": 1_880, "validation": 1_880, "test": 1_880},
    ),
)
EUROSAT = describe(
    "EuroSAT",
    "eurosat",
    27_000,
    'its authors\' repository, "EuroSAT" (IEEE JSTARS 2019), the version in RGB',
    "MIT",
    coop("EuroSAT", "EuroSAT", "2750", (13_500, 5_400, 8_100)),
    torchvision("EuroSAT", TorchvisionFolder("EuroSAT", "eurosat", ("2750",))),
)
UCF_101 = describe(
    "UCF101",
    "ucf101",
    13_320,
    'the University of Central Florida, "UCF101" (2012); CoOp took the middle frame of each video',
    "none stated",
    coop("UCF101", "UCF101", "UCF-101-midframes", (7_639, 1_898, 3_783)),
    listed(
        "UCF101",
        "CoOp without its split",
        "UCF-101-midframes/…, ucfTrainTestlist/{train,test}list01.txt",
        ImageLists(
            files={"ucfTrainTestlist/trainlist01.txt": "train", "ucfTrainTestlist/testlist01.txt": "test"},
            line=r"(?P<class>[^/]+)/(?P<image>[^/]+)\.avi(?: \d+)?",
            image="UCF-101-midframes/{class_name}/{image}.jpg",
        ),
        {"train": 9_537, "test": 3_783},
        title="list 1 train/test",
    ),
)
COOP_DATA_SETS = (
    CALTECH_101,
    OXFORD_PETS,
    STANFORD_CARS,
    FLOWERS_102,
    FOOD_101,
    FGVC_AIRCRAFT,
    SUN_397,
    DTD,
    EUROSAT,
    UCF_101,
)
